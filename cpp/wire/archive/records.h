// The members of an archive that is being written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/archive/limits.h"
#include "wire/archive/member.h"
#include "wire/archive/weights.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::wire {

/// The bytes of an index that was written.
struct IndexBytes {
  std::vector<std::uint8_t> bytes;
  std::size_t root_position, root_size;
  Digest root_digest;
};

class ArchiveRecords {
 public:
  using Members = std::map<std::string, Member, std::less<>>;

  /// Checks all of an index and takes over its members and its weights. Throws Error.
  void take(const ArchiveIndex& index);
  /// The same if there are few members. Of many, it takes over blocks when they are needed: the index has to live as long
  /// as this. All functions may then throw Error. `root_position` is where its root is in the file. Tests change what is
  /// few.
  void build_on(const ArchiveIndex& index, std::uint64_t root_position, std::uint32_t few = max_rewritten_members);

  std::size_t size() const { return size_; }
  /// All of them.
  const Members& members();
  /// Null where there is no such member.
  const Member* get(std::string_view name);
  ArchiveWeights& weights();
  /// Throws std::invalid_argument where a new member cannot have this name, which may be a folder of other names.
  void check_name(std::string_view name);
  /// Throws std::invalid_argument where something in it is not allowed.
  void put(const std::string& name, Member member);
  void remove(std::string_view name);

  /// A member of this content; null where none is known. Of an index that this builds on, only members of blocks that
  /// were needed are known.
  const std::string* of_content(const Digest& digest, std::uint32_t size) const;
  /// A module of this content, likewise; and one inside a member that owns its bytes and has its modules in them.
  const Member::Module* module(const Digest& digest, std::uint32_t size) const;
  const Member::Module* owned_module(const Digest& digest, std::uint32_t size) const;
  /// The members that share another's bytes at a position.
  std::vector<std::string> sharing(std::uint64_t position);
  /// The members with modules that are apart from them, between two positions.
  std::vector<std::string> using_modules(std::uint64_t begin, std::uint64_t end);

  /// `end` is where the members' bytes end and the index begins. Throws std::length_error where it is too large.
  IndexBytes write(std::string_view writer, std::uint64_t end);

  /// What the ZIP file's directory lists, but for the index: all members, or after `write` wrote only changes, those of
  /// the section that begins at a position.
  std::vector<ZipMember> files(std::uint64_t section);

 private:
  class Writing;
  using Modules = std::set<std::tuple<Digest, std::uint32_t, std::string_view, std::size_t>>;  // with their numbers

  /// Takes over the block in which a name is, or would be; or all blocks.
  void need(std::string_view name);
  void need_block(std::uint32_t block);
  void need_all();
  /// Whether an index of changes is to be written.
  bool writes_changes() const { return base_ && size_ > few_; }
  void write_all(Writing& writing);
  void write_changes(Writing& writing);

  /// What is looked for is ordered, not hashed: digests, positions and names are what hostile files say. Names are
  /// those of `members_`.
  void know(std::string_view name, const Member& member);
  void forget(std::string_view name, const Member& member);
  const Member::Module* module_in(const Modules& modules, const Digest& digest, std::uint32_t size) const;
  template <class Change>
  void change(std::string_view name, const Member& member, const Change& change);

  Members members_;
  std::size_t size_ = 0;
  ArchiveWeights weights_;

  // The index that this builds on; which of its blocks were taken over, which of these changed, and once its weights were
  // taken over, how many files it has.
  const ArchiveIndex* base_ = nullptr;
  std::uint64_t base_root_position_ = 0;
  std::uint32_t few_ = 0;
  std::set<std::uint32_t> needed_, changed_;
  std::optional<std::size_t> base_files_;

  std::set<std::tuple<Digest, std::uint32_t, std::string_view>> contents_;
  /// Modules of members that own them; and where the owner may be in a block that was not needed, of others.
  Modules modules_, used_modules_;
  std::set<std::pair<std::uint64_t, std::string_view>> sharing_, using_;  // by positions
};

}  // namespace jaxexp::wire

// The members of an archive that is being written.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
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

  const Members& members() const { return members_; }
  ArchiveWeights& weights() { return weights_; }
  const ArchiveWeights& weights() const { return weights_; }
  /// Throws std::invalid_argument where a new member cannot have this name, which may be a folder of other names.
  void check_name(std::string_view name) const;
  /// Throws std::invalid_argument where something in it is not allowed.
  void put(const std::string& name, Member member);
  void remove(std::string_view name);

  /// A member that owns its bytes and has this content; null where there is none.
  const std::string* of_content(const Digest& digest, std::uint32_t size) const;
  /// A module of this content inside a member that owns its bytes and has its modules in them.
  const Member::Module* module(const Digest& digest, std::uint32_t size) const;
  /// The members that share another's bytes at a position.
  std::vector<std::string> sharing(std::uint64_t position) const;
  /// The members with modules that are apart from them, between two positions.
  std::vector<std::string> using_modules(std::uint64_t begin, std::uint64_t end) const;

  /// `end` is where the members' bytes end and the index begins. Throws std::length_error where it is too large.
  IndexBytes write(std::string_view writer, std::uint64_t end) const;

  /// The members of the ZIP file, but for the index.
  std::vector<ZipMember> files() const;

 private:
  /// What is looked for is ordered, not hashed: digests, positions and names are what hostile files say. Names are
  /// those of `members_`.
  void know(std::string_view name, const Member& member);
  void forget(std::string_view name, const Member& member);
  template <class Change>
  void change(std::string_view name, const Member& member, const Change& change);

  Members members_;
  ArchiveWeights weights_;
  std::set<std::tuple<Digest, std::uint32_t, std::string_view>> contents_;
  std::set<std::tuple<Digest, std::uint32_t, std::string_view, std::size_t>> modules_;  // with the number of the module
  std::set<std::pair<std::uint64_t, std::string_view>> sharing_, using_;                // by positions
};

}  // namespace jaxexp::wire

// The members of an archive that is being written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/archive/member.h"
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

  /// Checks all of an index and takes over its members. Throws Error.
  void take(const ArchiveIndex& index);

  const Members& members() const { return members_; }
  /// Throws std::invalid_argument where a new member cannot have this name, which may be a folder of other names.
  void check_name(std::string_view name) const;
  /// Throws std::invalid_argument where something in it is not allowed.
  void put(const std::string& name, Member member);
  void remove(std::string_view name);

  /// A member that owns its bytes and has this content.
  const std::string* of_content(const Digest& digest, std::uint32_t size) const;
  /// A module of this content inside a member that owns its bytes and has its modules in them.
  const Member::Module* module(const Digest& digest, std::uint32_t size) const;

  /// `end` is where the members' bytes end and the index begins. Throws std::length_error where it is too large.
  IndexBytes write(std::string_view writer, std::uint64_t end) const;

  /// The members of the ZIP file, but for the index.
  std::vector<ZipMember> files() const;

 private:
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const;
  };

  void know(const std::string& name, const Member& member);

  Members members_;
  // May name members that were removed, so every hit is looked up in `members_`.
  std::unordered_multimap<Digest, std::string, DigestHash> contents_;
  std::unordered_multimap<Digest, std::pair<std::string, std::size_t>, DigestHash> modules_;
};

}  // namespace jaxexp::wire

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
#include "wire/archive/zip_file.h"

namespace jaxexp::wire {

/// What an index says of a member, in memory of its own; schema/archive.fbs says what is what.
struct MemberRecord {
  std::uint64_t position = 0;
  std::uint32_t stored_size = 0, crc32 = 0;
  std::uint16_t header = 0;
  bool shared = false, apart = false;
  Digest digest = {};
  std::uint32_t size = 0;
  struct Module {
    std::uint64_t position;
    std::uint32_t size;
    Digest digest;
  };
  std::vector<Module> modules;
  std::string fun_name;
  std::optional<std::string> jax_version;
  std::string writer, platforms, arguments, results;
  std::uint32_t nr_devices = 0, argument_count = 0, result_count = 0;
  std::optional<std::string> metadata;
  bool own_metadata = false;

  static MemberRecord of(const schema::Member& member);
};

/// An index as it is written.
struct IndexBytes {
  std::vector<std::uint8_t> bytes;
  std::size_t root_position, root_size;
  Digest root_digest;
};

class ArchiveRecords {
 public:
  using Members = std::map<std::string, MemberRecord, std::less<>>;

  /// Takes over the members of an index, all of which it checks. Throws Error.
  void take(const ArchiveIndex& index);

  const Members& members() const { return members_; }
  /// Throws std::invalid_argument where a new member cannot have this name, which may be a folder of other names.
  void check_name(std::string_view name) const;
  /// Throws std::invalid_argument where something in it is not allowed.
  void put(const std::string& name, MemberRecord record);
  void remove(std::string_view name);

  /// A member that owns its bytes and has this content.
  const std::string* of_content(const Digest& digest, std::uint32_t size) const;
  /// A module of this content inside a member that owns its bytes and has its modules in them.
  const MemberRecord::Module* module(const Digest& digest, std::uint32_t size) const;

  /// `end` is where the members' bytes end and the index begins. Throws std::length_error where it is too large.
  IndexBytes write(std::string_view writer, std::uint64_t end) const;

  /// The members of the ZIP file, but for the index.
  std::vector<ZipMember> files() const;

 private:
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const;
  };

  void know(const std::string& name, const MemberRecord& record);

  Members members_;
  // May name what was removed: whoever finds something asks `members_`.
  std::unordered_multimap<Digest, std::string, DigestHash> contents_;
  std::unordered_multimap<Digest, std::pair<std::string, std::size_t>, DigestHash> modules_;
};

}  // namespace jaxexp::wire

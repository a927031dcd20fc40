// The last bytes of an archive: the end of a ZIP file, whose comment leads to the index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "wire/base/digest.h"

namespace jaxexp::wire {

struct ArchiveEnd {
  std::uint64_t index_position;  // in the file
  std::uint32_t index_size;
  std::uint32_t root_position, root_size;  // in the index
  Digest root_digest;

  std::string comment() const;

  /// How the comment begins, and how many bytes are in front of it.
  static constexpr std::string_view magic = "jaxexp archive ";
  static constexpr std::size_t magic_at = 22;

  static constexpr std::size_t size = 134;

  /// What the last `size` bytes say; nothing where they are not the end of an archive.
  static std::optional<ArchiveEnd> read(std::span<const std::uint8_t> last);

  /// Whether the bytes look like a damaged end: most of what all ends have in common is there.
  static bool is_resembled_by(std::span<const std::uint8_t> last);
};

/// A section begins with its head, which says where it ends. The head is written before everything else in the section,
/// and once more, with the section's end, when everything else is on the disk. So heads lead from the start of a file
/// to the last archive that was completed, and no byte inside of a member is looked at on the way.
struct Section {
  std::uint64_t position;   // of its first byte in the file
  std::uint64_t end = 0;    // of its last byte, plus one; 0 as long as it is being written
  Digest last_digest = {};  // of its last ArchiveEnd::size bytes

  /// Its first bytes: a member of a ZIP file that no directory lists.
  std::string head() const;

  /// What stands at `position`, as far as it is read from the first bytes there.
  enum class Kind : std::uint8_t { complete, unfinished, damaged, something_else };
  struct Found;
  static Found read(std::span<const std::uint8_t> first, std::uint64_t position);

  /// Whether these first bytes of a section are a mixture of those that it has while it is being written and those that
  /// it has if it ends at `end`: whoever completed it was interrupted while the head was written.
  static bool is_half_written(std::span<const std::uint8_t> first, const Section& complete);

  static constexpr std::size_t most_head = 192;
};

struct Section::Found {
  Kind kind;
  Section section;  // if it is complete
};

/// The bytes of a file in a range, valid until the next call.
using ReadAt = std::function<std::span<const std::uint8_t>(std::uint64_t position, std::size_t size)>;

struct FoundEnd {
  /// What follows the archive.
  enum class Rest : std::uint8_t {
    nothing,
    unfinished,  // what an interrupted append wrote, or one that is still running
    unknown,
  };

  std::uint64_t end;  // behind the archive's last byte
  ArchiveEnd said;    // by its last bytes
  Rest rest;
  std::uint64_t section;  // where its last section begins
};

/// Follows the heads of sections from the start of a file. Archives that earlier versions
/// wrote have none: there it walks over ZIP headers, member by member, or, if that is not wanted because each range
/// takes a request, it believes the end of the file. What is inside of members is never looked at. Throws Error where
/// there is no archive, or a part that all depends on is damaged.
FoundEnd find_end(std::uint64_t size, const ReadAt& read, bool may_walk);

}  // namespace jaxexp::wire

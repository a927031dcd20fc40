// The last bytes of an archive: the end of a ZIP file, whose comment leads to the index.
#pragma once

#include <cstddef>
#include <cstdint>
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

  /// The comment of the ZIP file.
  std::string comment() const;

  /// How the comment begins, and how many bytes are in front of it.
  static constexpr std::string_view magic = "jaxexp archive ";
  static constexpr std::size_t magic_at = 22;

  /// The size of an end.
  static constexpr std::size_t size = 134;

  /// What the last `size` bytes say; nothing where they are not the end of an archive.
  static std::optional<ArchiveEnd> read(std::span<const std::uint8_t> last);

  /// Whether the bytes look like a damaged end: most of what all ends have in common is there.
  static bool is_resembled_by(std::span<const std::uint8_t> last);
};

}  // namespace jaxexp::wire

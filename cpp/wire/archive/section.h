// The sections of an archive's file: what `create` wrote, and behind it what each append wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "wire/base/digest.h"

namespace jaxexp::wire {

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

  /// A head has at most so many bytes.
  static constexpr std::size_t most_head = 192;
};

struct Section::Found {
  Kind kind;
  Section section;  // if it is complete
};

}  // namespace jaxexp::wire

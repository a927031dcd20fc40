// Where the last complete archive in a file ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "wire/archive/end.h"

namespace jaxexp::wire {

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

/// Follows the heads of sections from the start of a file (wire/archive/section.h). Archives that earlier versions
/// wrote have none: there it walks over ZIP headers, member by member, or, if that is not wanted because each range
/// takes a request, it believes the end of the file. What is inside of members is never looked at. Throws Error where
/// there is no archive, or a part that all depends on is damaged.
FoundEnd find_end(std::uint64_t size, const ReadAt& read, bool may_walk);

}  // namespace jaxexp::wire

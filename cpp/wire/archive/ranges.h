// Many ranges of a file, read with few calls of the system.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/base/file_bytes.h"

namespace jaxexp::wire {

struct Range {
  std::uint64_t position;
  std::uint64_t size;
};

/// The bytes of ranges inside the file, read into `memory`, which grows if it has to, and of which the result are
/// parts. Ranges that are close to each other are read at once. What is at a multiple of eight in the file is so in
/// memory. Throws as FileBytes::read does.
std::vector<FileBytes::Bytes> read_ranges(const FileBytes& file, std::span<const Range> ranges,
                                          std::vector<std::uint64_t>& memory);

}  // namespace jaxexp::wire

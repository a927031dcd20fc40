// Whether a member of an archive is what the index says.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/artifact/opened.h"
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

/// Digests of modules, by position and size. Many members may have one module: it is read once for all of them.
using ModuleDigests = std::map<std::pair<std::uint64_t, std::uint32_t>, Digest>;

/// Reads all bytes of a member, which begin with its header in the ZIP file. `modules` has those that are apart from
/// it. Throws Error where its digest, its structure or its meaning is wrong. `known` is shared by all members of one
/// file. Returns what only Python can verify.
Texts verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                    const ModuleDigests& modules, MetadataCache& known, std::vector<std::uint64_t>& aligned);

}  // namespace jaxexp::wire

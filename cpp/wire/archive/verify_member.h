// Whether a member of an archive is what the index says.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/artifact/known.h"
#include "wire/artifact/texts.h"

namespace jaxexp::wire {

/// Digests of modules, by position and size. Many members may have one module: it is read once for all of them.
using ModuleDigests = std::map<std::pair<std::uint64_t, std::uint32_t>, Digest>;

/// Reads all bytes of a member, which begin with its header in the ZIP file. `modules` has those that are apart from
/// it. Throws Error where its digest, its structure or its meaning is wrong. `known` is shared by all members of one
/// file. Returns what only Python can verify.
Texts verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                    const ModuleDigests& modules, Known& known, std::vector<std::uint64_t>& aligned);

}  // namespace jaxexp::wire

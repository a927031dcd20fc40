// Whether a member of an archive is what the index says.
#pragma once

#include <cstdint>
#include <span>

#include "wire/archive/index.h"
#include "wire/artifact/known.h"

namespace jaxexp::wire {

/// Reads all bytes of a member, which begin with its header in the ZIP file, and of its modules where they are apart.
/// Throws Error where its digest, its structure or its meaning is wrong. `known` is shared by all members of one file.
void verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                   std::span<const std::span<const std::uint8_t>> modules, Known& known);

}  // namespace jaxexp::wire

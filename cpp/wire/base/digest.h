// XXH3 digests of 128 bits: they tell whether bytes are still those that were written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxexp::wire {

/// In the canonical byte order, as xxhash's command line and libraries print it.
using Digest = std::array<std::uint8_t, 16>;

Digest digest(std::span<const std::uint8_t> bytes);

/// Copies bytes and returns their digest, in one pass through memory.
Digest copy_and_digest(std::uint8_t* target, std::span<const std::uint8_t> bytes);

}  // namespace jaxexp::wire

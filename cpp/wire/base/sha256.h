// SHA-256 (FIPS 180-4): digests that nobody can make two texts for.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace jaxexp::wire {

std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> bytes);

}  // namespace jaxexp::wire

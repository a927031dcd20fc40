// Changes to an artifact's bytes that a flat buffer is sensitive to, made by its layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxexp::tests {

/// Changes a few of the offsets, lengths, vtables, numbers and texts that are found in `data`, or appends copies of
/// tables and vectors, up to `max_size` bytes in all. Returns the new size. What it does follows only from `seed`.
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, std::uint64_t seed);

/// Changes a few bytes wherever they are.
std::size_t mutate_bytes(std::uint8_t* data, std::size_t size, std::size_t max_size, std::uint64_t seed);

/// The next of a sequence of numbers (SplitMix64).
inline std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

}  // namespace jaxexp::tests

// How often a run came by each place of the control flow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace jaxexp::tests {

struct Trace {
  static constexpr std::size_t size = std::size_t{1} << 16;

  std::array<std::uint8_t, size> hits;     // up to 255 each; two places may share a counter
  std::array<std::uint16_t, size> places;  // those with any, in the order of their first hits
  std::size_t count;
};

extern Trace trace;

}  // namespace jaxexp::tests

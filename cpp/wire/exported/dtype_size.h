// How many bytes an element of each dtype takes in host memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace jaxexp::wire {

/// By the number of its kind. Narrow numbers take a byte each, a random key the numbers that it consists of, and float0
/// nothing. Nothing is returned for a dtype that was registered by its number.
inline std::optional<std::size_t> dtype_size(int kind) {
  static constexpr std::array<std::uint8_t, 30> sizes = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16, 2,
                                                         1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 8, 16, 16};
  if (kind < 0 || static_cast<std::size_t>(kind) >= sizes.size()) return std::nullopt;
  return sizes[static_cast<std::size_t>(kind)];
}

}  // namespace jaxexp::wire

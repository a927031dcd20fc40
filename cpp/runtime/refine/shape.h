// Shapes and short lists of integers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace jaxexp::runtime::refine {

using Shape = std::vector<std::int64_t>;
using Integers = std::vector<std::int64_t>;

/// A size that a module does not say.
inline constexpr std::int64_t dynamic_size = INT64_MIN;

/// How many integers are looked at together. Shapes have a few dimensions, and padding two numbers for each.
inline constexpr std::size_t most_integers = 256;

/// How many elements a shape has; nothing for shapes that no array has.
inline std::optional<std::int64_t> count_of(const Shape& shape) {
  constexpr std::int64_t most = std::int64_t{1} << 46;
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || size > most || (size > 0 && count > most / size)) return std::nullopt;
    count *= size;
  }
  return count;
}

/// Throws RunError: a module with symbolic dimensions cannot be made static for this reason.
[[noreturn]] void refuse(const std::string& reason);

}  // namespace jaxexp::runtime::refine

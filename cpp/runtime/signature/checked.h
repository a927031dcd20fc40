// Arithmetic of 64-bit integers that notices when a result does not fit. There is none of what has none.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace jaxexp::runtime {

using Checked = std::optional<std::int64_t>;

inline Checked add(Checked a, Checked b) {
  using Limits = std::numeric_limits<std::int64_t>;
  if (!a || !b || (*b > 0 ? *a > Limits::max() - *b : *a < Limits::min() - *b)) return std::nullopt;
  return *a + *b;
}

inline Checked multiply(Checked a, Checked b) {
  using Limits = std::numeric_limits<std::int64_t>;
  if (!a || !b) return std::nullopt;
  if (a == 0 || b == 0) return 0;
  if (a == Limits::min() || b == Limits::min()) return a == 1 ? b : b == 1 ? a : std::nullopt;
  const std::int64_t most = Limits::max() / (*a < 0 ? -*a : *a);
  if ((*b < 0 ? -*b : *b) > most) return std::nullopt;
  return *a * *b;
}

/// Rounded down, as Python does it.
inline Checked floor_divide(Checked a, Checked b) {
  if (!a || !b || b == 0 || (a == std::numeric_limits<std::int64_t>::min() && b == -1)) return std::nullopt;
  return *a / *b - (*a % *b != 0 && (*a < 0) != (*b < 0));
}

inline Checked power(Checked base, std::uint32_t exponent) {
  Checked result = 1;
  for (std::uint32_t i = 0; i < exponent && result; ++i) result = multiply(result, base);
  return result;
}

}  // namespace jaxexp::runtime

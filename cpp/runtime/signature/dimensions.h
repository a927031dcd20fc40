// Symbolic dimensions: what their variables are, given the shapes of arguments.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "wire/exported/dimension.h"

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

using Variables = std::map<std::string_view, std::int64_t>;

/// Expressions by their texts: many dimensions may have one, which is kept once.
using Expressions = std::map<std::string_view, std::shared_ptr<const wire::Expression>>;

struct Dimension {
  /// A view of the text is kept. The text comes from an artifact that was checked.
  Dimension(std::string_view text, Expressions& known);

  bool is_constant() const { return std::holds_alternative<std::int64_t>(value); }
  std::int64_t constant() const { return std::get<std::int64_t>(value); }
  /// Nothing where a variable is unknown, a number does not fit into 64 bits, or a divisor is zero.
  Checked evaluate(const Variables& variables) const;

  std::string_view text;
  std::variant<std::int64_t, std::shared_ptr<const wire::Expression>> value;
};

std::set<std::string_view> variables_in(const Expressions& expressions);

/// As in "a=2,b=3".
std::string str(const Variables& variables);

/// A dimension of an argument, and the size that was given for it.
struct Equation {
  const Dimension* dimension;
  std::int64_t size;
  std::string place;  // for messages, as in "args[0].shape[1]"
};

/// Finds the variables, each from an equation that is linear in it once others are known, and compares all dimensions.
/// Takes n log n steps. Throws RunError where that leaves a variable unknown, or a dimension is another one.
Variables solve(const std::vector<Equation>& equations);

}  // namespace jaxexp::runtime

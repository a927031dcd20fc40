// What wraps around is not known. Only operations are here that JAX computes indices with.
#include "runtime/refine/range.h"

#include <algorithm>
#include <string_view>

namespace jaxexp::runtime::refine {
namespace {

/// Numbers up to here can be multiplied.
constexpr std::int64_t most = INT32_MAX;

std::optional<Range> fitting(std::int64_t least, std::int64_t greatest, const Element& element) {
  const bool fits = least >= (element.is_signed ? -most : 0) && greatest <= most && wrapped(least, element) == least &&
                    wrapped(greatest, element) == greatest;
  return fits ? std::optional(Range{least, greatest}) : std::nullopt;
}

/// Nothing where it depends on the numbers.
std::optional<Range> less(const Range& a, const Range& b) {
  if (a.greatest < b.least) return Range{1, 1};
  if (a.least >= b.greatest) return Range{0, 0};
  return std::nullopt;
}

}  // namespace

std::optional<Range> range_of(const Integers& numbers, const Element& element) {
  const auto [least, greatest] = std::ranges::minmax(numbers);
  return fitting(least, greatest, element);
}

std::optional<Range> range_of(Tables& tables, const Operation& operation, const Ranges& operands) {
  const Tables::Kind& kind = tables.kind(operation.kind);
  if (!kind.is_vhlo || operation.results.size() != 1) return std::nullopt;
  const std::string_view base = kind.base;
  const Type& type = tables.type(operation.results[0]);
  const Element element = tables.element(type.element);
  if (!type.is_tensor || !element.is_integer) return std::nullopt;
  if (base == "iota") {
    const auto d = static_cast<std::size_t>(tables.integer(tables.needed(operation, "iota_dimension")));
    return fitting(0, std::max<std::int64_t>(type.shape.at(d) - 1, 0), element);
  }
  if (operands.empty() || !operands[0]) return std::nullopt;
  const Range& a = *operands[0];
  if (base == "select") return a.is_one() ? operands[a.least != 0 ? 1 : 2] : std::nullopt;
  if (base == "broadcast_in_dim" || base == "reshape" || (base == "convert" && !element.is_boolean()))
    return fitting(a.least, a.greatest, element);
  if (operands.size() != 2 || !operands[1]) return std::nullopt;
  const Range& b = *operands[1];
  if (base == "add" && !element.is_boolean()) return fitting(a.least + b.least, a.greatest + b.greatest, element);
  if (base == "multiply" && !element.is_boolean()) {
    const auto [least, greatest] =
        std::minmax({a.least * b.least, a.least * b.greatest, a.greatest * b.least, a.greatest * b.greatest});
    return fitting(least, greatest, element);
  }
  if (base != "compare") return std::nullopt;
  switch (static_cast<Direction>(tables.number(tables.needed(operation, "comparison_direction")))) {
    case Direction::less: return less(a, b);
    case Direction::greater: return less(b, a);
    default: return std::nullopt;
  }
}

}  // namespace jaxexp::runtime::refine

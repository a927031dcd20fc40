// Results wrap around, as they do where a plugin computes them.
#include "runtime/refine/numbers.h"

#include <algorithm>

namespace jaxexp::runtime::refine {
namespace {

using Number = std::optional<std::int64_t>;

std::uint64_t bits(std::int64_t number) { return static_cast<std::uint64_t>(number); }
std::int64_t number(std::uint64_t bits) { return static_cast<std::int64_t>(bits); }

/// Whether one number is smaller than another; unsigned ones are kept as the same bits.
bool is_less(std::int64_t a, std::int64_t b, const Element& element) {
  return element.is_signed ? a < b : bits(a) < bits(b);
}

Number divided(std::int64_t a, std::int64_t b, const Element& element) {
  if (b == 0) return std::nullopt;
  if (!element.is_signed) return number(bits(a) / bits(b));
  return b == -1 ? number(0 - bits(a)) : a / b;
}

Number remainder(std::int64_t a, std::int64_t b, const Element& element) {
  if (b == 0) return std::nullopt;
  if (!element.is_signed) return number(bits(a) % bits(b));
  return b == -1 ? 0 : a % b;
}

using Unary = Number (*)(std::int64_t, const Element&);
using Binary = Number (*)(std::int64_t, std::int64_t, const Element&);

Unary unary(std::string_view name) {
  if (name == "abs")
    return [](auto a, auto& of) { return of.is_signed ? Number(a < 0 ? number(0 - bits(a)) : a) : std::nullopt; };
  if (name == "negate") return [](auto a, auto&) { return Number(number(0 - bits(a))); };
  if (name == "not") return [](auto a, auto& of) { return Number(of.is_boolean() ? a == 0 : ~a); };
  if (name == "sign") return [](auto a, auto& of) { return of.is_signed ? Number((a > 0) - (a < 0)) : std::nullopt; };
  return nullptr;
}

Binary binary(std::string_view name) {
  if (name == "add")
    return [](auto a, auto b, auto& of) { return Number(of.is_boolean() ? a | b : number(bits(a) + bits(b))); };
  if (name == "subtract") return [](auto a, auto b, auto&) { return Number(number(bits(a) - bits(b))); };
  if (name == "multiply") return [](auto a, auto b, auto&) { return Number(number(bits(a) * bits(b))); };
  if (name == "divide") return divided;
  if (name == "remainder") return remainder;
  if (name == "maximum") return [](auto a, auto b, auto& of) { return Number(is_less(a, b, of) ? b : a); };
  if (name == "minimum") return [](auto a, auto b, auto& of) { return Number(is_less(b, a, of) ? b : a); };
  if (name == "and") return [](auto a, auto b, auto&) { return Number(a & b); };
  if (name == "or") return [](auto a, auto b, auto&) { return Number(a | b); };
  if (name == "xor") return [](auto a, auto b, auto&) { return Number(a ^ b); };
  return nullptr;
}

/// The elements of a row-major array of this shape, by their indices: calls `visit` with each.
template <class Visit>
void each_index(const Shape& shape, Visit visit) {
  Integers index(shape.size(), 0);
  for (std::int64_t left = *count_of(shape); left > 0; --left) {
    visit(index);
    for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
}

std::int64_t place(const Shape& shape, const Integers& index) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

const std::int64_t* element_at(const Known& known, const Integers& index) {
  for (std::size_t d = 0; d < index.size(); ++d)
    if (index[d] < 0 || index[d] >= known.shape[d]) return nullptr;
  return &known.values[static_cast<std::size_t>(place(known.shape, index))];
}

/// The elements of a result, each of which stands in an operand at the index that `from` makes of its own. Nothing if
/// one of them does not stand there.
template <class From>
std::optional<Integers> picked(const Known& operand, const Shape& result, From from) {
  Integers values;
  bool fits = true;
  each_index(result, [&](const Integers& index) {
    const std::int64_t* const value = element_at(operand, from(index));
    if (value)
      values.push_back(*value);
    else
      fits = false;
  });
  return fits ? std::optional(std::move(values)) : std::nullopt;
}

/// A scalar stands for each of its elements.
std::int64_t of_each(const Known& known, std::size_t i) { return known.values[known.shape.empty() ? 0 : i]; }

}  // namespace

std::int64_t wrapped(std::int64_t number, const Element& element) {
  if (element.bits == 0) return 0;  // of i0, which MLIR has
  if (element.bits == 1) return number & 1;
  if (element.bits >= 64) return number;
  const std::uint64_t low = bits(number) << (64 - element.bits);
  return element.is_signed ? static_cast<std::int64_t>(low) >> (64 - element.bits)
                           : static_cast<std::int64_t>(low >> (64 - element.bits));
}

std::optional<Integers> computed(std::string_view operation, std::span<const Known* const> operands,
                                 const Element& result) {
  if (operands.empty() || !result.is_integer) return std::nullopt;
  const bool is_select = operation == "select", is_clamp = operation == "clamp";
  const Known& first = *operands[is_select || is_clamp ? 1 % operands.size() : 0];
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool may_be_scalar = is_select ? i == 0 : is_clamp && i != 1;
    if (operands[i]->values.size() != first.values.size() && !(may_be_scalar && operands[i]->shape.empty()))
      return std::nullopt;
  }
  Integers values(first.values.size());
  const auto fill = [&](auto each) -> std::optional<Integers> {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Number value = each(i);
      if (!value) return std::nullopt;
      values[i] = wrapped(*value, result);
    }
    return std::move(values);
  };
  if (operands.size() == 1) {
    if (operation == "convert")
      return fill([&](std::size_t i) { return Number(result.is_boolean() ? first.values[i] != 0 : first.values[i]); });
    if (const Unary apply = unary(operation))
      return fill([&](std::size_t i) { return apply(first.values[i], first.element); });
  }
  if (operands.size() == 2)
    if (const Binary apply = binary(operation))
      return fill([&](std::size_t i) { return apply(first.values[i], operands[1]->values[i], first.element); });
  if (operands.size() == 3 && is_select)
    return fill([&](std::size_t i) { return Number(operands[of_each(*operands[0], i) ? 1 : 2]->values[i]); });
  if (operands.size() == 3 && is_clamp)
    return fill([&](std::size_t i) {
      const std::int64_t low = of_each(*operands[0], i), high = of_each(*operands[2], i);
      const std::int64_t value = is_less(first.values[i], low, first.element) ? low : first.values[i];
      return Number(is_less(high, value, first.element) ? high : value);
    });
  return std::nullopt;
}

Integers compared(Direction direction, const Known& a, const Known& b) {
  Integers values(std::min(a.values.size(), b.values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool less = is_less(a.values[i], b.values[i], a.element), equal = a.values[i] == b.values[i];
    switch (direction) {
      case Direction::equal: values[i] = equal; break;
      case Direction::different: values[i] = !equal; break;
      case Direction::greater_equal: values[i] = !less; break;
      case Direction::greater: values[i] = !less && !equal; break;
      case Direction::less_equal: values[i] = less || equal; break;
      case Direction::less: values[i] = less; break;
    }
  }
  return values;
}

std::optional<Integers> concatenated(std::span<const Known* const> operands, std::size_t dimension,
                                     const Shape& result) {
  Integers values;
  each_index(result, [&](Integers index) {
    for (const Known* const operand : operands) {
      if (const std::int64_t size = operand->shape[dimension]; index[dimension] >= size) {
        index[dimension] -= size;
        continue;
      }
      const std::int64_t* const value = element_at(*operand, index);
      if (value) values.push_back(*value);
      break;
    }
  });
  if (values.size() != static_cast<std::size_t>(*count_of(result))) return std::nullopt;
  return values;
}

std::optional<Integers> sliced(const Known& operand, const Integers& starts, const Integers& strides,
                               const Shape& result) {
  return picked(operand, result, [&](Integers index) {
    for (std::size_t d = 0; d < index.size(); ++d) index[d] = starts[d] + index[d] * strides[d];
    return index;
  });
}

std::optional<Integers> chosen(const Known& vector, const Known& indices) {
  const auto last = static_cast<std::int64_t>(vector.values.size()) - 1;
  if (last < 0 || !indices.element.is_signed) return std::nullopt;
  Integers values;
  for (const std::int64_t index : indices.values)
    values.push_back(vector.values[static_cast<std::size_t>(std::clamp(index, std::int64_t{0}, last))]);
  return values;
}

std::optional<Integers> broadcast(const Known& operand, const Integers& dimensions, const Shape& result) {
  return picked(operand, result, [&](const Integers& index) {
    Integers from;
    for (std::size_t d = 0; d < dimensions.size(); ++d)
      from.push_back(operand.shape[d] == 1 ? 0 : index[static_cast<std::size_t>(dimensions[d])]);
    return from;
  });
}

}  // namespace jaxexp::runtime::refine

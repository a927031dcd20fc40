// Shapes, and integers of a module as its operations compute them: sizes, and what is computed of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// What the elements of a tensor are, as far as anything here depends on it.
struct Element {
  std::uint64_t kind;  // the number of the type
  unsigned bits;       // 0 where it is not known
  bool is_integer, is_signed;

  bool is_boolean() const { return is_integer && bits == 1; }
};

/// A number as its type has it: the low bits of what was computed.
std::int64_t wrapped(std::int64_t number, const Element& element);

/// A tensor of integers that are known, row-major.
struct Known {
  Element element;
  Shape shape;
  Integers values;
};

/// How numbers are compared, in VHLO's order.
enum class Direction : std::uint64_t { equal, different, greater_equal, greater, less_equal, less };

/// What an operation of these operands computes, element by element; nothing where it is no such operation, or leaves
/// open what it computes, as for a division by zero. `operation` is its name without a version.
std::optional<Integers> computed(std::string_view operation, std::span<const Known* const> operands,
                                 const Element& result);
Integers compared(Direction direction, const Known& a, const Known& b);

// Operations that move elements. Shapes were checked: results have as many elements as their shapes say.
std::optional<Integers> concatenated(std::span<const Known* const> operands, std::size_t dimension,
                                     const Shape& result);
std::optional<Integers> sliced(const Known& operand, const Integers& starts, const Integers& strides,
                               const Shape& result);
/// Of a vector, the elements with these indices, or the nearest ones.
std::optional<Integers> chosen(const Known& vector, const Known& indices);
std::optional<Integers> broadcast(const Known& operand, const Integers& dimensions, const Shape& result);

}  // namespace jaxexp::runtime::refine

// The shapes of what operations compute, by the shapes of what they compute it of.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "runtime/refine/code.h"
#include "runtime/refine/shape.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::refine {

/// What decides the shape of a result.
struct Inputs {
  Tables& tables;
  const Operation& operation;
  std::span<const Type* const> operands;  // each with a static shape, where it is a tensor
  std::size_t result;

  const Shape& shape(std::size_t operand) const;
  Integers integers(std::string_view attribute) const { return tables.needed_integers(operation, attribute); }
  std::int64_t integer(std::string_view attribute) const { return tables.integer(tables.needed(operation, attribute)); }
};

/// Whether the operands and the results of an operation have one shape, and each element has to do with its own only.
bool is_elementwise(std::string_view base);

/// The shape of a result. Nothing for operations that are not known here, by their names without a version. Throws
/// RunError where an operation is not one that could be.
std::optional<Shape> inferred(std::string_view base, const Inputs& inputs);

/// The size of a dimension, which has to be there. Throws RunError.
std::int64_t size_at(const Shape& shape, std::int64_t dimension);

// What attributes or numbers ask for. These throw RunError where they do not fit.
Shape padded(const Shape& operand, const Integers& low, const Integers& high, const Integers& interior);
Shape sliced_shape(const Shape& operand, const Integers& starts, const Integers& limits, const Integers& strides);
/// `padding` has two numbers for each dimension.
Shape windowed(const Shape& operand, const Integers& window, const Integers& strides, const Integers& base_dilations,
               const Integers& window_dilations, const Integers& padding);
Shape gathered(const Inputs& inputs, const Integers& slice_sizes);
Shape convolved(const Inputs& inputs, const Integers& padding);

}  // namespace jaxexp::runtime::refine

// The rules are those of StableHLO's specification.
#include "runtime/refine/infer.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "runtime/signature/checked.h"

namespace jaxexp::runtime::refine {
namespace {

[[noreturn]] void refuse_sizes() { refuse("one of its operations does not fit the sizes that it gets"); }

/// A number that is there, and the size of something.
std::int64_t size(Checked found) {
  constexpr std::int64_t most = std::int64_t{1} << 46;
  if (!found || *found < 0 || *found > most) refuse_sizes();
  return *found;
}

bool contains(const Integers& numbers, std::size_t number) {
  return std::ranges::find(numbers, static_cast<std::int64_t>(number)) != numbers.end();
}

std::int64_t at(const Integers& numbers, std::size_t i) {
  if (i >= numbers.size()) refuse_sizes();
  return numbers[i];
}

/// How long a dimension is with gaps between its elements.
Checked dilated(std::int64_t length, std::int64_t dilation) {
  if (dilation < 1) refuse_sizes();
  return length == 0 ? Checked(0) : add(multiply(length - 1, dilation), 1);
}

/// How many windows fit into a length.
std::int64_t windows(Checked length, Checked window, std::int64_t stride) {
  if (!length || !window || *length < 0 || stride < 1) refuse_sizes();
  return *window > *length ? 0 : size(add(floor_divide(add(length, multiply(window, -1)), stride), 1));
}

Shape without(const Shape& shape, const Integers& dimensions) {
  Shape left;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (!contains(dimensions, d)) left.push_back(shape[d]);
  return left;
}

Shape same(const Inputs& in) { return in.shape(0); }
Shape of_second(const Inputs& in) { return in.shape(1); }
Shape of_each(const Inputs& in) { return in.shape(in.result); }

Shape transposed(const Inputs& in) {
  Shape found;
  for (const std::int64_t d : in.integers("permutation")) found.push_back(size_at(in.shape(0), d));
  return found;
}

Shape concatenated(const Inputs& in) {
  Shape found = in.shape(0);
  const std::int64_t d = in.integer("dimension");
  Checked length = size_at(found, d);
  for (std::size_t i = 1; i < in.operands.size(); ++i) length = add(length, size_at(in.shape(i), d));
  found[static_cast<std::size_t>(d)] = size(length);
  return found;
}

Shape reduced(const Inputs& in) { return without(in.shape(in.result), in.integers("dimensions")); }

Integers or_ones(const Inputs& in, std::string_view attribute) {
  const auto found = in.tables.attribute(in.operation, attribute);
  return found ? in.integers(attribute) : Integers(in.shape(in.result).size(), 1);
}

Shape reduced_by_windows(const Inputs& in) {
  return windowed(in.shape(in.result), in.integers("window_dimensions"), or_ones(in, "window_strides"),
                  or_ones(in, "base_dilations"), or_ones(in, "window_dilations"), in.integers("padding"));
}

Shape product(const Inputs& in) {
  const Integers batch = in.integers("lhs_batching_dimensions"), other_batch = in.integers("rhs_batching_dimensions");
  Integers left = in.integers("lhs_contracting_dimensions"), right = in.integers("rhs_contracting_dimensions");
  Shape found;
  for (const std::int64_t d : batch) found.push_back(size_at(in.shape(0), d));
  left.insert(left.end(), batch.begin(), batch.end());
  right.insert(right.end(), other_batch.begin(), other_batch.end());
  for (const std::int64_t length : without(in.shape(0), left)) found.push_back(length);
  for (const std::int64_t length : without(in.shape(1), right)) found.push_back(length);
  return found;
}

Shape transformed(const Inputs& in) {
  enum : std::uint64_t { forward, inverse, real, inverse_real };
  Shape found = in.shape(0);
  const std::uint64_t kind = in.tables.number(in.tables.needed(in.operation, "fft_type"));
  const Integers lengths = in.integers("fft_length");
  if (found.empty() || lengths.empty()) refuse_sizes();
  if (kind == real) found.back() = size(lengths.back()) / 2 + 1;
  if (kind == inverse_real) found.back() = lengths.back();
  return found;
}

/// A result of other numbers may have one dimension more or less, whose size is known.
Shape cast(const Inputs& in) {
  Shape found = in.tables.type(in.operation.results.at(in.result)).shape;
  const Shape& operand = in.shape(0);
  for (std::size_t d = 0; d < std::min(found.size(), operand.size()); ++d) found[d] = operand[d];
  return found;
}

const std::unordered_set<std::string_view> elementwise = {"abs",
                                                          "add",
                                                          "and",
                                                          "atan2",
                                                          "cbrt",
                                                          "ceil",
                                                          "complex",
                                                          "convert",
                                                          "cosine",
                                                          "count_leading_zeros",
                                                          "compare",
                                                          "divide",
                                                          "exponential",
                                                          "exponential_minus_one",
                                                          "floor",
                                                          "imag",
                                                          "is_finite",
                                                          "log",
                                                          "log_plus_one",
                                                          "logistic",
                                                          "maximum",
                                                          "minimum",
                                                          "multiply",
                                                          "negate",
                                                          "not",
                                                          "or",
                                                          "popcnt",
                                                          "power",
                                                          "real",
                                                          "reduce_precision",
                                                          "remainder",
                                                          "round_nearest_afz",
                                                          "round_nearest_even",
                                                          "rsqrt",
                                                          "shift_left",
                                                          "shift_right_arithmetic",
                                                          "shift_right_logical",
                                                          "sign",
                                                          "sine",
                                                          "sqrt",
                                                          "subtract",
                                                          "tan",
                                                          "tanh",
                                                          "xor"};

const std::unordered_map<std::string_view, std::function<Shape(const Inputs&)>> rules = {
    {"all_reduce", of_each},
    {"bitcast_convert", cast},
    {"cholesky", same},
    {"clamp", of_second},
    {"collective_broadcast", same},
    {"collective_permute", same},
    {"concatenate", concatenated},
    {"convolution", [](const Inputs& in) { return convolved(in, in.integers("padding")); }},
    {"dot_general", product},
    {"dynamic_slice", [](const Inputs& in) { return in.integers("slice_sizes"); }},
    {"dynamic_update_slice", same},
    {"fft", transformed},
    {"gather", [](const Inputs& in) { return gathered(in, in.integers("slice_sizes")); }},
    {"map", same},
    {"optimization_barrier", of_each},
    {"pad",
     [](const Inputs& in) {
       return padded(in.shape(0), in.integers("edge_padding_low"), in.integers("edge_padding_high"),
                     in.integers("interior_padding"));
     }},
    {"reduce", reduced},
    {"reduce_window", reduced_by_windows},
    {"reverse", same},
    {"scatter", of_each},
    {"select", of_second},
    {"select_and_scatter", same},
    {"slice",
     [](const Inputs& in) {
       return sliced_shape(in.shape(0), in.integers("start_indices"), in.integers("limit_indices"),
                           in.integers("strides"));
     }},
    {"sort", of_each},
    {"transpose", transposed},
    {"triangular_solve", of_second},
    {"while", of_each},
};

}  // namespace

const Shape& Inputs::shape(std::size_t operand) const {
  if (operand >= operands.size() || !operands[operand]->is_tensor) refuse_sizes();
  return operands[operand]->shape;
}

bool is_elementwise(std::string_view base) { return elementwise.contains(base); }

std::optional<Shape> inferred(std::string_view base, const Inputs& inputs) {
  if (is_elementwise(base)) return same(inputs);
  const auto rule = rules.find(base);
  return rule == rules.end() ? std::nullopt : std::optional(rule->second(inputs));
}

std::int64_t size_at(const Shape& shape, std::int64_t dimension) {
  if (dimension < 0 || static_cast<std::size_t>(dimension) >= shape.size()) refuse_sizes();
  return shape[static_cast<std::size_t>(dimension)];
}

Shape padded(const Shape& operand, const Integers& low, const Integers& high, const Integers& interior) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const Checked inside = dilated(operand[d], size(at(interior, d)) + 1);
    found.push_back(size(add(add(inside, at(low, d)), at(high, d))));
  }
  return found;
}

Shape sliced_shape(const Shape& operand, const Integers& starts, const Integers& limits, const Integers& strides) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const std::int64_t start = at(starts, d), limit = at(limits, d), stride = at(strides, d);
    if (start < 0 || start > limit || limit > operand[d] || stride < 1) refuse_sizes();
    found.push_back(start == limit ? 0 : (limit - start - 1) / stride + 1);
  }
  return found;
}

Shape windowed(const Shape& operand, const Integers& window, const Integers& strides, const Integers& base_dilations,
               const Integers& window_dilations, const Integers& padding) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const Checked inside = dilated(operand[d], at(base_dilations, d));
    found.push_back(windows(add(add(inside, at(padding, 2 * d)), at(padding, 2 * d + 1)),
                            dilated(size(at(window, d)), at(window_dilations, d)), at(strides, d)));
  }
  return found;
}

Shape gathered(const Inputs& inputs, const Integers& slice_sizes) {
  const Integers offsets = inputs.integers("offset_dims");
  Integers dropped = inputs.integers("collapsed_slice_dims");
  if (inputs.tables.attribute(inputs.operation, "operand_batching_dims"))
    for (const std::int64_t d : inputs.integers("operand_batching_dims")) dropped.push_back(d);
  const Shape slice = without(slice_sizes, dropped);
  const Shape batch = without(inputs.shape(1), {inputs.integer("index_vector_dim")});
  Shape found;
  std::size_t next_offset = 0, next_batch = 0;
  for (std::size_t d = 0; d < offsets.size() + batch.size(); ++d)
    found.push_back(contains(offsets, d) ? at(slice, next_offset++) : at(batch, next_batch++));
  return found;
}

Shape convolved(const Inputs& inputs, const Integers& padding) {
  const Shape &left = inputs.shape(0), &right = inputs.shape(1);
  const Integers input = inputs.integers("input_spatial_dimensions"),
                 kernel = inputs.integers("kernel_spatial_dimensions"),
                 output = inputs.integers("output_spatial_dimensions");
  const auto or_ones = [&](std::string_view attribute) {
    return inputs.tables.attribute(inputs.operation, attribute) ? inputs.integers(attribute)
                                                                : Integers(input.size(), 1);
  };
  const Integers strides = or_ones("window_strides"), left_dilation = or_ones("lhs_dilation"),
                 right_dilation = or_ones("rhs_dilation");
  Shape found(left.size(), 0);
  const auto set = [&](std::int64_t dimension, std::int64_t length) {
    size_at(found, dimension);
    found[static_cast<std::size_t>(dimension)] = length;
  };
  const std::int64_t groups = inputs.integer("batch_group_count");
  if (groups < 1) refuse_sizes();
  set(inputs.integer("output_batch_dimension"), size_at(left, inputs.integer("input_batch_dimension")) / groups);
  set(inputs.integer("output_feature_dimension"), size_at(right, inputs.integer("kernel_output_feature_dimension")));
  for (std::size_t i = 0; i < input.size(); ++i) {
    const Checked inside = dilated(size_at(left, input[i]), at(left_dilation, i));
    set(at(output, i), windows(add(add(inside, at(padding, 2 * i)), at(padding, 2 * i + 1)),
                               dilated(size_at(right, at(kernel, i)), at(right_dilation, i)), at(strides, i)));
  }
  return found;
}

}  // namespace jaxexp::runtime::refine

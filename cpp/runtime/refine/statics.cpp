// Operations that take sizes as operands, as the operations that have them as attributes.
#include <algorithm>
#include <utility>

#include "runtime/refine/refiner.h"

namespace jaxexp::runtime::refine {
namespace {

constexpr std::string_view with_sizes[] = {
    "dynamic_broadcast_in_dim", "dynamic_conv",       "dynamic_gather",     "dynamic_iota", "dynamic_pad",
    "dynamic_reshape",          "get_dimension_size", "real_dynamic_slice", "rng"};

}  // namespace

/// Whether an operation was one of these, and is written.
bool Refiner::made_static(const Operation& in) {
  const std::string_view base = tables_.kind(in.kind).base;
  if (std::ranges::find(with_sizes, base) == std::end(with_sizes)) return false;
  if (in.operands.empty() || in.results.empty()) refuse_operation(in);  // of a version that is not known
  const auto shaped_as = [&](Operation out, const Shape& shape) {
    out.results = {shaped(in.results.at(0), shape)};
    finish(in, std::move(out));
    return true;
  };
  if (base == "get_dimension_size") {
    const Type& operand = type(value(in.operands.at(0)));
    if (!operand.is_tensor) refuse_operation(in);
    const std::int64_t size = size_at(operand.shape, tables_.integer(tables_.needed(in, "dimension")));
    const Id result = in.results.at(0);
    const Element element = tables_.element(tables_.type(result).element);
    if (!tables_.type(result).shape.empty() || !element.is_integer) refuse_operation(in);
    if (wrapped(size, element) != size) refuse("it has an array whose size is no number of its module");
    set(in.first_result, constant(in.location, result, {element, {}, {size}}));
    return true;
  }
  if (base == "dynamic_broadcast_in_dim") return shaped_as(written_as(in, "broadcast_in_dim_v1", {}, 1), sizes(in, 1));
  if (base == "dynamic_reshape") return shaped_as(written_as(in, "reshape_v1", {}, 1), sizes(in, 1));
  if (base == "dynamic_iota") return shaped_as(written_as(in, "iota_v1", {}, 0), sizes(in, 0));
  if (base == "rng") return shaped_as(begun(in), sizes(in, 2));
  if (base == "dynamic_pad") {
    const Integers low = numbers(in, 2), high = numbers(in, 3), interior = numbers(in, 4);
    const Named attributes{{"edge_padding_high", tables_.sizes_attribute(high)},
                           {"edge_padding_low", tables_.sizes_attribute(low)},
                           {"interior_padding", tables_.sizes_attribute(interior)}};
    return shaped_as(written_as(in, "pad_v1", attributes, 2),
                     padded(type(value(in.operands.at(0))).shape, low, high, interior));
  }
  if (base == "dynamic_gather") {
    const bool is_first = tables_.kind(in.kind).name == "dynamic_gather_v1";
    const Integers slices = numbers(in, 2);
    Operation out =
        written_as(in, is_first ? "gather_v1" : "gather_v2", {{"slice_sizes", tables_.sizes_attribute(slices)}}, 2);
    const Types types = types_of(out.operands);
    const Type* const operands[] = {&tables_.type(types[0]), &tables_.type(types[1])};
    return shaped_as(std::move(out), gathered({tables_, in, operands, 0}, slices));
  }
  if (base == "dynamic_conv") {
    const Integers padding = numbers(in, 2);
    const auto pairs = static_cast<std::int64_t>(padding.size() / 2);
    Operation out = written_as(in, "convolution_v1", {{"padding", tables_.sizes_attribute(padding, {pairs, 2})}}, 2);
    const Types types = types_of(out.operands);
    const Type* const operands[] = {&tables_.type(types[0]), &tables_.type(types[1])};
    return shaped_as(std::move(out), convolved({tables_, in, operands, 0}, padding));
  }
  dynamic_slice(in);
  return true;
}

/// An operation of another kind in the place of `in`, with these attributes and as many of its attributes as that kind
/// has, and with the first `operands` of its operands.
Operation Refiner::written_as(const Operation& in, std::string_view kind, Named attributes, std::size_t operands) {
  Operation out = begun(in);
  if (out.operands.size() < operands) refuse_operation(in);
  out.operands.resize(operands);
  out.kind = tables_.vhlo_kind(kind);
  std::string_view names = tables_.kind(out.kind).attributes ? tables_.kind(out.kind).attributes->names : "";
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    if (std::ranges::find(attributes, name, &Named::value_type::first) == attributes.end())
      attributes.emplace_back(name, tables_.needed(in, name));
    names.remove_prefix(std::min(name.size() + 1, names.size()));
  }
  tables_.set_attributes(out, std::move(attributes));
  return out;
}

/// An operand that has to be known.
Integers Refiner::numbers(const Operation& in, std::size_t operand) {
  const Known* const found = operand < in.operands.size() ? known(value(in.operands[operand])) : nullptr;
  if (!found) refuse_operation(in);
  return found->values;
}

/// The same, where it is the shape of the result, which may be static anyway.
Shape Refiner::sizes(const Operation& in, std::size_t operand) {
  const Type& declared = tables_.type(in.results.at(0));
  return declared.is_tensor && !declared.is_dynamic ? declared.shape : numbers(in, operand);
}

/// Where only the sizes are known, the limits are computed as the starts and the sizes.
void Refiner::dynamic_slice(const Operation& in) {
  if (in.operands.size() != 4) refuse_operation(in);
  const Id operand = value(in.operands[0]), start = value(in.operands[1]), limit = value(in.operands[2]);
  const Shape shape = type(operand).shape;
  const Integers strides = numbers(in, 3);
  if (known(start) && known(limit)) {
    const Integers starts = numbers(in, 1), limits = numbers(in, 2);
    Operation out = written_as(in, "slice_v1",
                               {{"limit_indices", tables_.sizes_attribute(limits)},
                                {"start_indices", tables_.sizes_attribute(starts)},
                                {"strides", tables_.sizes_attribute(strides)}},
                               1);
    out.results = {shaped(in.results.at(0), sliced_shape(shape, starts, limits, strides))};
    return finish(in, std::move(out));
  }
  const bool is_dense = std::ranges::all_of(strides, [](std::int64_t stride) { return stride == 1; });
  if (!is_dense || values_[limit].summand != start) refuse_operation(in);
  const Integers sizes = values_[limit].offset->values;
  if (sizes.size() != shape.size() ||
      !std::ranges::equal(sizes, shape, [](auto a, auto b) { return 0 <= a && a <= b; }))
    refuse_operation(in);
  Operation out = written_as(in, "dynamic_slice_v1", {{"slice_sizes", tables_.sizes_attribute(sizes)}}, 1);
  const Id element = type(start).element;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
    Operation one;
    one.kind = tables_.vhlo_kind("slice_v1"), one.location = in.location, one.operands = {start};
    one.results = {tables_.tensor_type(element, {1})};
    tables_.set_attributes(one, {{"limit_indices", tables_.sizes_attribute(Integers{d + 1})},
                                 {"start_indices", tables_.sizes_attribute(Integers{d})},
                                 {"strides", tables_.sizes_attribute(Integers{1})}});
    Operation scalar;
    scalar.kind = tables_.vhlo_kind("reshape_v1"), scalar.location = in.location;
    scalar.operands = {emit(std::move(one))};
    scalar.results = {tables_.tensor_type(element, {})};
    out.operands.push_back(emit(std::move(scalar)));
  }
  out.results = {shaped(in.results.at(0), sizes)};
  finish(in, std::move(out));
}

}  // namespace jaxexp::runtime::refine

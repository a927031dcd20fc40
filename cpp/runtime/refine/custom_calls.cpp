// Custom calls that stand for operations with open sizes, or have the shapes of their results as operands.
#include <algorithm>
#include <charconv>
#include <utility>

#include "jaxexp/run_error.h"
#include "runtime/refine/assertion.h"
#include "runtime/refine/refiner.h"

namespace jaxexp::runtime::refine {
namespace {

/// "{1}" stands for the second one of these numbers.
std::string filled(std::string_view text, const Integers& numbers) {
  std::string filled;
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('{', 1), text.size());
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + plain, number);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (text.front() == '{' && error == std::errc() && digits < plain && text[digits] == '}' &&
        number < numbers.size()) {
      filled += std::to_string(numbers[number]);
      text.remove_prefix(digits + 1);
    } else {
      filled += text.substr(0, plain);
      text.remove_prefix(plain);
    }
  }
  return filled;
}

}  // namespace

void Refiner::refuse_operation(const Operation& in, std::string_view target) const {
  std::string name = tables_.kind(in.kind).full_name();
  if (!target.empty()) name += " of " + wire::shortened(target);
  refuse("of its operation " + name + " it is not known what sizes it computes");
}

void Refiner::custom_call(const Operation& in) {
  const std::string_view target = tables_.text(tables_.needed(in, "call_target_name"));
  if (target == "shape_assertion") return assertion(in);
  if (target == "stablehlo.dynamic_reduce_window") return reduce_window(in);
  if (target == "stablehlo.dynamic_rng_bit_generator") return random_bits(in);
  if (target == "stablehlo.dynamic_top_k") return top_k(in);
  if (target.starts_with("stablehlo.dynamic_")) refuse_operation(in, target);
  if (const auto indices = tables_.attribute(in, "indices_of_shape_operands")) return with_shape_operands(in, *indices);
  Operation out = begun(in);
  called_computations(out);
  constexpr std::string_view keep_shapes[] = {"Sharding", "annotate_device_placement", "LayoutConstraint"};
  const bool keeps_shapes = std::ranges::find(keep_shapes, target) != std::end(keep_shapes);
  for (std::size_t i = 0; i < in.results.size(); ++i) {
    const Type& declared = tables_.type(in.results[i]);
    if (!declared.is_dynamic)
      out.results.push_back(in.results[i]);
    else if (keeps_shapes && i < out.operands.size())
      out.results.push_back(shaped(in.results[i], type(out.operands[i]).shape));
    else if (target.starts_with("lapack_") && !out.operands.empty())
      out.results.push_back(shaped(in.results[i], of_batch(in, declared.shape, type(out.operands.back()).shape)));
    else
      refuse_operation(in, target);
  }
  finish(in, std::move(out));
}

/// Of calls of LAPACK by JAX before 0.4.31: what is open is the size of a batch of matrices, the last operand.
Shape Refiner::of_batch(const Operation& in, Shape declared, const Shape& matrices) const {
  for (std::size_t d = 0; d < declared.size(); ++d) {
    if (declared[d] != dynamic_size) continue;
    if (d + 2 >= matrices.size()) refuse_operation(in, "LAPACK");
    declared[d] = matrices[d];
  }
  return declared;
}

/// What is asserted holds for these sizes, or an error says so: it is nothing that is computed.
void Refiner::assertion(const Operation& in) {
  const Integers holds = numbers(in, 0);
  Integers shown;
  for (std::size_t i = 1; i < in.operands.size(); ++i) {
    const Integers number = numbers(in, i);
    shown.push_back(number.empty() ? 0 : number.front());
  }
  if (!holds.empty() && holds.front() != 0) return;
  const std::string message = filled(tables_.text(tables_.needed(in, "error_message")), shown);
  throw RunError(RunError::Reason::argument, message.empty()
                                                 ? "the shapes of the arguments violate an assertion in the module"
                                                 : in_own_words(message));
}

void Refiner::with_shape_operands(const Operation& in, Id indices) {
  const auto places = tables_.integers(indices);
  if (!places || places->size() != in.results.size()) refuse_operation(in);
  Operation out = begun(in);
  for (std::size_t i = 0; i < places->size(); ++i) {
    const std::int64_t place = (*places)[i];
    if (place < 0 || static_cast<std::size_t>(place) >= in.operands.size()) refuse_operation(in);
    out.results.push_back(shaped(in.results[i], numbers(in, static_cast<std::size_t>(place))));
  }
  std::vector<bool> is_shape(in.operands.size());
  for (const std::int64_t place : *places) is_shape[static_cast<std::size_t>(place)] = true;
  const std::vector<Id> layouts = tables_.array(tables_.needed(in, "operand_layouts"));
  std::vector<Id> operands, left;
  for (std::size_t i = 0; i < out.operands.size(); ++i) {
    if (is_shape[i]) continue;
    operands.push_back(out.operands[i]);
    if (i < layouts.size()) left.push_back(layouts[i]);
  }
  out.operands = std::move(operands);
  if (left.size() < layouts.size()) tables_.replace_attribute(out, "operand_layouts", tables_.array_attribute(left));
  tables_.remove_attribute(out, "indices_of_shape_operands");
  called_computations(out);
  finish(in, std::move(out));
}

/// Functions that an operation names are written as they are.
void Refiner::called_computations(Operation& out) {
  const auto names = tables_.attribute(out, "called_computations");
  if (!names) return;
  std::vector<Id> symbols;
  for (const Id name : tables_.array(*names)) {
    Function& called = function(tables_.text(name));
    Types types;
    for (const auto& argument : called.operation->regions.front().front().arguments) {
      if (tables_.type(argument.type).is_dynamic) refuse_operation(out, tables_.text(name));
      types.push_back(argument.type);
    }
    symbols.push_back(needed(specialized(called, types, Numbers(types.size()))));
  }
  if (!symbols.empty()) tables_.replace_attribute(out, "called_computations", tables_.array_attribute(symbols));
}

/// The function that it calls becomes the region of the operation.
void Refiner::reduce_window(const Operation& in) {
  const std::vector<Id> names = tables_.array(tables_.needed(in, "called_computations"));
  if (names.size() != 1 || in.operands.size() < 7 || in.operands.size() % 2 == 0) refuse_operation(in);
  const std::size_t arrays = (in.operands.size() - 5) / 2, numbers_at = 2 * arrays;
  if (in.results.size() != arrays) refuse_operation(in);
  const Integers window = numbers(in, numbers_at), strides = numbers(in, numbers_at + 1),
                 base_dilations = numbers(in, numbers_at + 2), window_dilations = numbers(in, numbers_at + 3),
                 padding = numbers(in, numbers_at + 4);
  const auto pairs = static_cast<std::int64_t>(padding.size() / 2);
  Operation out = written_as(in, "reduce_window_v1",
                             {{"base_dilations", tables_.sizes_attribute(base_dilations)},
                              {"padding", tables_.sizes_attribute(padding, {pairs, 2})},
                              {"window_dilations", tables_.sizes_attribute(window_dilations)},
                              {"window_dimensions", tables_.sizes_attribute(window)},
                              {"window_strides", tables_.sizes_attribute(strides)}},
                             numbers_at);
  for (std::size_t i = 0; i < arrays; ++i)
    out.results.push_back(shaped(in.results[i], windowed(type(out.operands[i]).shape, window, strides, base_dilations,
                                                         window_dilations, padding)));
  out.regions.emplace_back().push_back(body(in, function(tables_.text(names.front()))));
  finish(in, std::move(out));
}

/// The code of a function of static types, as a region.
Block Refiner::body(const Operation& in, Function& function) {
  const Block& block = function.operation->regions.front().front();
  Types types;
  for (const auto& argument : block.arguments) types.push_back(argument.type);
  if (std::ranges::any_of(types, [&](Id type) { return tables_.type(type).is_dynamic; })) refuse_operation(in);
  auto outer_values = std::exchange(values_of_, new_values(function));
  const Id outer_first = std::exchange(first_, function.first);
  Block found = evaluated(block, types);
  values_of_ = std::move(outer_values);
  first_ = outer_first;
  return found;
}

void Refiner::random_bits(const Operation& in) {
  if (in.operands.size() != 2 || in.results.size() != 2) refuse_operation(in);
  const Named attributes{{"rng_algorithm", tables_.needed(in, "rng_algorithm")}};
  Operation out = written_as(in, "rng_bit_generator_v1", attributes, 1);
  out.results = {shaped(in.results[0], type(out.operands[0]).shape), shaped(in.results[1], numbers(in, 1))};
  finish(in, std::move(out));
}

/// The largest elements of the last dimension and where they are: what is in front after a stable sort.
void Refiner::top_k(const Operation& in) {
  if (in.operands.size() != 2 || in.results.size() != 2) refuse_operation(in);
  const Id operand = value(in.operands[0]), operand_type = values_[operand].type;
  const Integers k = numbers(in, 1);
  const Type& array = tables_.type(operand_type);
  const Shape shape = array.shape;
  const Id element = array.element;
  if (!array.is_tensor || shape.empty() || k.size() != 1 || k.front() < 0 || k.front() > shape.back())
    refuse_operation(in);
  const auto last = static_cast<std::int64_t>(shape.size()) - 1;
  const Id index_type = tables_.tensor_type(tables_.scalar_element(vhlo::type::si32), shape);

  Operation iota;
  iota.kind = tables_.vhlo_kind("iota_v1"), iota.location = in.location, iota.results = {index_type};
  tables_.set_attributes(iota, {{"iota_dimension", tables_.integer_attribute(last)}});
  Operation sort;
  sort.kind = tables_.vhlo_kind("sort_v1"), sort.location = in.location;
  sort.operands = {operand, emit(std::move(iota))};
  sort.results = {operand_type, index_type};
  tables_.set_attributes(
      sort, {{"dimension", tables_.integer_attribute(last)}, {"is_stable", tables_.boolean_attribute(true)}});
  sort.regions.emplace_back().push_back(is_greater(in.location, element));
  const Id sorted = emit(std::move(sort));

  Shape limits = shape;
  limits.back() = k.front();
  for (Id i = 0; i < 2; ++i) {
    Operation slice;
    slice.kind = tables_.vhlo_kind("slice_v1"), slice.location = in.location, slice.operands = {sorted + i};
    slice.results = {shaped(in.results[i], limits)};
    tables_.set_attributes(slice, {{"limit_indices", tables_.sizes_attribute(limits)},
                                   {"start_indices", tables_.sizes_attribute(Integers(shape.size(), 0))},
                                   {"strides", tables_.sizes_attribute(Integers(shape.size(), 1))}});
    set(in.first_result + i, emit(std::move(slice)));
  }
}

/// Compares two elements for a sort of elements with their indices.
Block Refiner::is_greater(Id location, Id element) {
  const Id scalar = tables_.tensor_type(element, {}),
           index = tables_.tensor_type(tables_.scalar_element(vhlo::type::si32), {}),
           truth = tables_.tensor_type(tables_.scalar_element(vhlo::type::boolean), {});
  const Element numbers = tables_.element(element);
  const auto how = !numbers.is_integer ? vhlo::total_order
                   : numbers.is_signed ? vhlo::signed_integers
                                       : vhlo::unsigned_integers;
  Block block;
  block.first_argument = static_cast<Id>(values_.size());
  for (const Id type : {scalar, scalar, index, index}) {
    values_.push_back({type});
    block.arguments.push_back({type, location});
  }
  Block* const outer = std::exchange(block_, &block);
  Operation compare;
  compare.kind = tables_.vhlo_kind("compare_v1"), compare.location = location, compare.results = {truth};
  compare.operands = {block.first_argument, block.first_argument + 1};
  tables_.set_attributes(
      compare, {{"compare_type", tables_.enum_attribute(vhlo::attribute::comparison, how)},
                {"comparison_direction",
                 tables_.enum_attribute(vhlo::attribute::direction, static_cast<std::uint64_t>(Direction::greater))}});
  Operation end;
  end.kind = tables_.vhlo_kind("return_v1"), end.location = location, end.operands = {emit(std::move(compare))};
  emit(std::move(end));
  block_ = outer;
  return block;
}

}  // namespace jaxexp::runtime::refine

// XLA's code for CPUs counts the places of a convolution in 32-bit floats, which have no odd numbers above 2^24. Before
// JAX 0.12, it does not know where it is if a padding takes away in front and adds behind, and what other operations
// add, it makes a part of the padding. So what a padding takes away in front, a slice takes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block, refine::Id, refine::Integers, refine::Operation, refine::Shape;

constexpr std::int64_t limit = std::int64_t{1} << 24;

class Confining {
 public:
  Confining(refine::Tables& tables, Id values) : tables_(tables), types_(values), next_(values) {}

  void block(Block& block) {
    for (std::size_t i = 0; i < block.arguments.size(); ++i) types_[block.first_argument + i] = block.arguments[i].type;
    std::vector<Operation> before;
    before.swap(block.operations);
    for (Operation& one : before) {
      for (std::size_t i = 0; i < one.results.size(); ++i) types_[one.first_result + i] = one.results[i];
      for (auto& region : one.regions)
        for (Block& inside : region) this->block(inside);
      const refine::Tables::Kind& kind = tables_.kind(one.kind);
      if (kind.is_vhlo && kind.base == "convolution") confine(one, block.operations);
      block.operations.push_back(std::move(one));
    }
  }

  bool is_changed() const { return is_changed_; }

 private:
  void confine(Operation& one, std::vector<Operation>& out) {
    const auto integers = [&](const char* name) { return tables_.needed_integers(one, name); };
    Integers padding = integers("padding");
    for (const auto& [what, numbers] :
         {std::pair("strides", integers("window_strides")), std::pair("padding", padding),
          std::pair("distances", integers("lhs_dilation")), std::pair("distances", integers("rhs_dilation"))})
      for (const std::int64_t number : numbers)
        if (number <= -limit || limit <= number) refuse(one, std::string(what) + " of " + std::to_string(number));
    const Shape input = shape(one, 0), kernel = shape(one, 1);
    Integers starts(input.size(), 0);
    const Integers dimensions = integers("input_spatial_dimensions"), distances = integers("lhs_dilation");
    for (std::size_t i = 0; i < dimensions.size(); ++i) {
      const auto d = static_cast<std::size_t>(dimensions[i]);
      if (input[d] == refine::dynamic_size) continue;
      std::int64_t& low = padding[2 * i];
      const std::int64_t count = places(one, input[d], distances[i]);
      refuse_many(one, count + low + padding[2 * i + 1]);
      if (low >= 0 || distances[i] < 1) continue;
      if (count + low < 0)
        refuse(one, "padding that takes away " + std::to_string(-low) + " places of " + std::to_string(count));
      starts[d] = (distances[i] - 1 - low) / distances[i];
      low = count + low == 0 ? 0 : starts[d] * distances[i] + low;
    }
    const Integers of_kernel = integers("kernel_spatial_dimensions"), kernel_distances = integers("rhs_dilation");
    // A kernel may have more dimensions here than its input; StableHLO refuses that.
    for (std::size_t i = 0; i < std::min(of_kernel.size(), kernel_distances.size()); ++i)
      if (const std::int64_t size = kernel[static_cast<std::size_t>(of_kernel[i])]; size != refine::dynamic_size)
        places(one, size, kernel_distances[i]);
    const bool is_open = tables_.type(types_[one.operands.front()]).is_dynamic;  // until a call says its sizes
    if (is_open || std::ranges::all_of(starts, [](std::int64_t start) { return start == 0; })) return;
    is_changed_ = true;
    out.push_back(slice(one, input, starts));
    one.operands.front() = out.back().first_result;
    const auto pairs = static_cast<std::int64_t>(dimensions.size());
    tables_.replace_attribute(one, "padding", tables_.sizes_attribute(padding, {pairs, 2}));
  }

  /// What is behind `starts`.
  Operation slice(const Operation& of, const Shape& sizes, const Integers& starts) {
    Shape left = sizes;
    for (std::size_t d = 0; d < left.size(); ++d) left[d] -= starts[d];
    Operation made;
    made.kind = tables_.vhlo_kind("slice_v1"), made.location = of.location, made.operands = {of.operands.front()};
    made.results = {tables_.tensor_type(tables_.type(types_[of.operands.front()]).element, left)};
    made.first_result = next_++;
    tables_.set_attributes(made, {{"limit_indices", tables_.sizes_attribute(sizes)},
                                  {"start_indices", tables_.sizes_attribute(starts)},
                                  {"strides", tables_.sizes_attribute(Integers(sizes.size(), 1))}});
    return made;
  }

  const Shape& shape(const Operation& one, std::size_t operand) {
    const refine::Type& type = tables_.type(types_[one.operands.at(operand)]);
    if (!type.is_tensor) refuse(one, "sizes with bounds");
    return type.shape;
  }

  /// How many an array of this size has in a dimension, with those between its elements.
  std::int64_t places(const Operation& one, std::int64_t size, std::int64_t distance) const {
    if (size == 0) return 0;
    refuse_many(one, size);
    const std::int64_t count = (size - 1) * distance + 1;
    refuse_many(one, count);
    return count;
  }

  void refuse_many(const Operation& one, std::int64_t places) const {
    if (places >= limit) refuse(one, std::to_string(places) + " places in a dimension");
  }

  [[noreturn]] void refuse(const Operation& one, const std::string& what) const {
    const std::string place = tables_.place_of(one.location);
    refine::refuse("its operation convolution" + (place.empty() ? "" : " at " + place) + " has " + what +
                   ": on CPUs, XLA reads outside of its arrays for 2^24 places or more in a dimension, for strides, "
                   "distances and paddings as large, and for paddings that take away more than there is");
  }

  refine::Tables& tables_;
  std::vector<Id> types_;  // of the module's values
  Id next_;                // value
  bool is_changed_ = false;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> with_confined_convolutions(std::span<const std::uint8_t> module,
                                                                    const wire::Path& where) {
  refine::Parts parts(module, where);
  refine::Code code = parts.code();
  Confining confining(parts.tables(), code.values);
  confining.block(code.top);
  if (!confining.is_changed()) return std::nullopt;
  return parts.written(code.top);
}

}  // namespace jaxexp::runtime::adapt

// XLA computes how far a scatter may reach in the type of its indices. Releases before JAX 0.12 take a window for one
// that is outside of an array that is longer than the type can say, and write nothing.
#include <utility>
#include <vector>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block, refine::Id, refine::Operation;

class Widening {
 public:
  Widening(refine::Tables& tables, Id values) : tables_(tables), types_(values), next_(values) {}

  void block(Block& block) {
    for (std::size_t i = 0; i < block.arguments.size(); ++i) types_[block.first_argument + i] = block.arguments[i].type;
    std::vector<Operation> before;
    before.swap(block.operations);
    for (Operation& one : before) {
      for (std::size_t i = 0; i < one.results.size(); ++i) types_[one.first_result + i] = one.results[i];
      for (auto& region : one.regions)
        for (Block& inside : region) this->block(inside);
      const refine::Tables::Kind& kind = tables_.kind(one.kind);
      if (kind.is_vhlo && kind.base == "scatter") widen(one, block.operations);
      block.operations.push_back(std::move(one));
    }
  }

  bool is_changed() const { return is_changed_; }

 private:
  /// The indices are behind the arrays, and in front of as many updates.
  void widen(Operation& scatter, std::vector<Operation>& out) {
    constexpr unsigned wide = 32;
    Id& indices = scatter.operands.at(scatter.operands.size() / 2);
    const refine::Type& type = tables_.type(types_[indices]);
    const refine::Element element = tables_.element(type.element);
    if (!element.is_integer || element.bits == 0 || element.bits >= wide) return;
    is_changed_ = true;
    Operation convert;
    convert.kind = tables_.vhlo_kind("convert_v1"), convert.location = scatter.location, convert.operands = {indices};
    const refine::Shape shape = type.shape;
    convert.results = {tables_.tensor_type(tables_.scalar_element(refine::vhlo::type::si32), shape)};
    indices = convert.first_result = next_++;
    out.push_back(std::move(convert));
  }

  refine::Tables& tables_;
  std::vector<Id> types_;  // of the module's values
  Id next_;                // value
  bool is_changed_ = false;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> with_wide_indices(std::span<const std::uint8_t> module,
                                                           const wire::Path& where) {
  refine::Parts parts(module, where);
  refine::Code code = parts.code();
  Widening widening(parts.tables(), code.values);
  widening.block(code.top);
  if (!widening.is_changed()) return std::nullopt;
  return parts.written(code.top);
}

}  // namespace jaxexp::runtime::adapt

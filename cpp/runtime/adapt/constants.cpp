// Older releases of XLA compute operations of constants when they read a module. They end the process then where
// integers are divided by 0, and lose NaN in maxima and minima. On the device, the quotient of such a division has all
// bits set, as StableHLO's specification says, and the remainder is the dividend.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block, refine::Id, refine::Operation;
namespace vhlo = refine::vhlo;

class Guard {
 public:
  Guard(refine::Tables& tables, Id values) : tables_(tables), are_constant_(values), next_(values) {}

  void block(Block& block) {
    for (const Block::Argument& argument : block.arguments) look_at(argument.type);
    std::vector<Operation> before;
    before.swap(block.operations);
    for (Operation& one : before) {
      for (const Id type : one.results) look_at(type);
      for (auto& region : one.regions)
        for (Block& inside : region) this->block(inside);
      note(one);
      if (is_division(one)) {
        divide(std::move(one), block.operations);
      } else {
        if (is_extremum_of_constants(one)) hide_operand(one, block.operations);
        block.operations.push_back(std::move(one));
      }
    }
  }

  bool is_changed() const { return is_changed_; }
  bool is_open() const { return is_open_; }  // whether sizes of values are

 private:
  void look_at(Id type) { is_open_ = is_open_ || tables_.type(type).is_dynamic; }

  /// Whether its results are computed of constants only.
  void note(const Operation& one) {
    const refine::Tables::Kind& kind = tables_.kind(one.kind);
    const bool is_constant = kind.is_vhlo && (kind.base == "constant" || (!one.operands.empty() && are_constant(one)));
    for (std::size_t i = 0; i < one.results.size(); ++i) are_constant_[one.first_result + i] = is_constant;
  }

  bool are_constant(const Operation& one) const {
    return std::ranges::all_of(one.operands, [&](Id value) { return are_constant_[value]; });
  }

  bool is_extremum_of_constants(const Operation& one) const {
    const refine::Tables::Kind& kind = tables_.kind(one.kind);
    return kind.is_vhlo && (kind.base == "maximum" || kind.base == "minimum") && are_constant(one) &&
           !tables_.element(tables_.type(one.results.at(0)).element).is_integer;
  }

  void hide_operand(Operation& one, std::vector<Operation>& out) {
    is_changed_ = true;
    Operation barrier;
    barrier.kind = tables_.vhlo_kind("optimization_barrier_v1"), barrier.location = one.location;
    barrier.operands = {one.operands.front()}, barrier.results = {one.results.front()}, barrier.first_result = next_++;
    one.operands.front() = barrier.first_result;
    out.push_back(std::move(barrier));
  }

  bool is_division(const Operation& one) const {
    const refine::Tables::Kind& kind = tables_.kind(one.kind);
    if (!kind.is_vhlo || (kind.base != "divide" && kind.base != "remainder")) return false;
    const refine::Element element = tables_.element(tables_.type(one.results.at(0)).element);
    return element.is_integer && !element.is_boolean();
  }

  /// The division by 1 where it would be by 0, and the choice between its result and the right one.
  void divide(Operation one, std::vector<Operation>& out) {
    is_changed_ = true;
    const Id type = one.results.front(), dividend = one.operands.at(0), divisor = one.operands.at(1);
    const refine::Type& array = tables_.type(type);
    const Id truths = tables_.tensor_type(tables_.scalar_element(vhlo::type::boolean), array.shape);
    const auto how = tables_.element(array.element).is_signed ? vhlo::signed_integers : vhlo::unsigned_integers;
    const auto add = [&](std::string_view kind, Id result, std::vector<Id> operands, refine::Named attributes = {}) {
      Operation made;
      made.kind = tables_.vhlo_kind(kind), made.location = one.location, made.operands = std::move(operands);
      made.results = {result}, made.first_result = next_++;
      tables_.set_attributes(made, std::move(attributes));
      out.push_back(std::move(made));
      return out.back().first_result;
    };
    const auto constant = [&](std::int64_t number) {
      return add("constant_v1", type, {}, {{"value", tables_.tensor_attribute(type, {{number}})}});
    };
    const Id zeros = constant(0), ones = constant(1);
    const auto equal = static_cast<std::uint64_t>(refine::Direction::equal);
    const Id is_zero = add("compare_v1", truths, {divisor, zeros},
                           {{"compare_type", tables_.enum_attribute(vhlo::attribute::comparison, how)},
                            {"comparison_direction", tables_.enum_attribute(vhlo::attribute::direction, equal)}});
    const bool is_quotient = tables_.kind(one.kind).base == "divide";
    const Id of_zero = is_quotient ? add("subtract_v1", type, {zeros, ones}) : dividend;
    one.operands = {dividend, add("select_v1", type, {is_zero, ones, divisor})};
    const Id result = std::exchange(one.first_result, next_++), computed = one.first_result;
    out.push_back(std::move(one));
    add("select_v1", type, {is_zero, of_zero, computed});
    out.back().first_result = result;
  }

  refine::Tables& tables_;
  std::vector<bool> are_constant_;  // values of the module
  Id next_;                         // value
  bool is_changed_ = false, is_open_ = false;
};

}  // namespace

std::optional<std::vector<std::uint8_t>> with_guarded_constants(std::span<const std::uint8_t> module,
                                                                const wire::Path& where) {
  refine::Parts parts(module, where);
  refine::Code code = parts.code();
  Guard guard(parts.tables(), code.values);
  guard.block(code.top);
  if (!guard.is_changed() || guard.is_open()) return std::nullopt;
  return parts.written(code.top);
}

}  // namespace jaxexp::runtime::adapt

// Whether a function may be called for no other reason than that the next call is faster.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "runtime/program/program.h"
#include "runtime/refine/parts.h"
#include "wire/api/translating.h"
#include "wire/bytecode/inventory.h"

namespace jaxexp::runtime {
namespace {

using refine::Block, refine::Id, refine::Operation;

/// Loops in the form in which JAX writes those that count: while a number is less than a constant, 1 is added to it.
class Loops {
 public:
  Loops(refine::Tables& tables, Id values) : tables_(tables), constants_(values) {}

  bool all_count(const Block& block) {
    for (const Operation& one : block.operations) {
      if (base(one) == "constant") constants_[one.first_result] = &one;
      for (const auto& region : one.regions)
        for (const Block& inside : region)
          if (!all_count(inside)) return false;
      if (base(one) == "while" && !counts(one)) return false;
    }
    return true;
  }

 private:
  std::string_view base(const Operation& one) const {
    const refine::Tables::Kind& kind = tables_.kind(one.kind);
    return kind.is_vhlo ? kind.base : std::string_view();
  }

  bool counts(const Operation& loop) const {
    const Block &condition = loop.regions.at(0).at(0), &body = loop.regions.at(1).at(0);
    const Operation* const compared = maker(condition, condition.operations.back().operands.at(0));
    if (!compared || base(*compared) != "compare" || !constants_[compared->operands.at(1)]) return false;
    constexpr auto less = static_cast<std::uint64_t>(refine::Direction::less);
    const std::size_t number = compared->operands.at(0) - condition.first_argument;
    if (tables_.number(tables_.needed(*compared, "comparison_direction")) != less || number >= body.arguments.size())
      return false;
    const Operation* const next = maker(body, body.operations.back().operands.at(number));
    return next && base(*next) == "add" && next->operands.at(0) == body.first_argument + number &&
           is_one(next->operands.at(1));
  }

  static const Operation* maker(const Block& block, Id value) {
    const auto found = std::ranges::find(block.operations, value, &Operation::first_result);
    return found == block.operations.end() || found->results.size() != 1 ? nullptr : &*found;
  }

  bool is_one(Id value) const {
    const Operation* const constant = constants_[value];
    return constant && tables_.integers(tables_.needed(*constant, "value")) == refine::Integers{1};
  }

  refine::Tables& tables_;
  std::vector<const Operation*> constants_;  // that make values
};

}  // namespace

bool Program::may_be_tried() const {
  const wire::Path where{nullptr, "mlir_module_serialized"};
  try {
    const auto found = translating([&] { return wire::read_inventory(module, where); });
    if (!found || !found->custom_calls) return false;
    for (const auto& [target, has_side_effect] : *found->custom_calls)
      if (has_side_effect && target != "shape_assertion") return false;  // which is gone when sizes are known
    for (const auto& [name, count] : found->operations)
      for (const std::string_view transfer : {"vhlo.infeed_", "vhlo.outfeed_", "vhlo.recv_", "vhlo.send_"})
        if (name.starts_with(transfer)) return false;
    if (!found->operations.contains("vhlo.while_v1")) return true;
    refine::Parts parts(module, where);
    const refine::Code code = parts.code();
    return Loops(parts.tables(), code.values).all_count(code.top);
  } catch (const RunError&) {  // of code that is not known here
    return false;
  }
}

}  // namespace jaxexp::runtime

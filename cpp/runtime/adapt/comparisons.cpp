// How integers are compared may be left to their type, which older releases of XLA take for unsigned.
#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

class Typing {
 public:
  Typing(refine::Tables& tables, refine::Id values) : tables_(tables), types_(values) {}

  /// Whether anything was changed.
  bool block(refine::Block& block) {
    for (std::size_t i = 0; i < block.arguments.size(); ++i) types_[block.first_argument + i] = block.arguments[i].type;
    bool is_changed = false;
    for (refine::Operation& one : block.operations) {
      for (std::size_t i = 0; i < one.results.size(); ++i) types_[one.first_result + i] = one.results[i];
      const refine::Tables::Kind& kind = tables_.kind(one.kind);
      if (kind.is_vhlo && kind.base == "compare") is_changed |= compare(one);
      for (auto& region : one.regions)
        for (refine::Block& inside : region) is_changed |= this->block(inside);
    }
    return is_changed;
  }

 private:
  bool compare(refine::Operation& one) {
    namespace vhlo = refine::vhlo;
    constexpr std::string_view how = "compare_type";
    const refine::Element element = tables_.element(tables_.type(types_[one.operands.at(0)]).element);
    if (!element.is_integer || tables_.number(tables_.needed(one, how)) != vhlo::no_comparison) return false;
    const auto as = element.is_signed && !element.is_boolean() ? vhlo::signed_integers : vhlo::unsigned_integers;
    tables_.replace_attribute(one, how, tables_.enum_attribute(vhlo::attribute::comparison, as));
    return true;
  }

  refine::Tables& tables_;
  std::vector<refine::Id> types_;  // of the values
};

}  // namespace

std::optional<std::vector<std::uint8_t>> with_typed_comparisons(std::span<const std::uint8_t> module,
                                                                const wire::Path& where) {
  refine::Parts parts(module, where);
  refine::Code code = parts.code();
  if (!Typing(parts.tables(), code.values).block(code.top)) return std::nullopt;
  return parts.written(code.top);
}

}  // namespace jaxexp::runtime::adapt

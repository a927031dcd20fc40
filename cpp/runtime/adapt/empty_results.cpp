// Where a call computes an array without elements, some releases of XLA divide by 0 when they compile a copy of it in
// another layout. Such an array needs none, and what else the calls compute then is zeros, or an argument.
#include <algorithm>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

/// Whether anything was changed.
bool change(refine::Tables& tables, refine::Block& block, const std::function<bool(std::string_view)>& is_meant) {
  const auto is_empty = [&](refine::Id type) {
    const refine::Type& one = tables.type(type);
    return one.is_tensor && !one.is_dynamic && std::ranges::find(one.shape, 0) != one.shape.end();
  };
  bool is_changed = false;
  for (refine::Operation& one : block.operations) {
    const refine::Tables::Kind& kind = tables.kind(one.kind);
    if (kind.is_vhlo && kind.base == "custom_call" && std::ranges::any_of(one.results, is_empty) &&
        is_meant(tables.text(tables.needed(one, "call_target_name")))) {
      for (const std::string_view layouts : {"operand_layouts", "result_layouts"})
        tables.replace_attribute(one, layouts, tables.array_attribute({}));
      is_changed = true;
    }
    for (auto& region : one.regions)
      for (refine::Block& inside : region) is_changed |= change(tables, inside, is_meant);
  }
  return is_changed;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> without_layouts_of_empty_results(
    std::span<const std::uint8_t> module, const wire::Path& where,
    const std::function<bool(std::string_view)>& is_meant) {
  refine::Parts parts(module, where);
  refine::Block top = parts.code().top;
  if (!change(parts.tables(), top, is_meant)) return std::nullopt;
  return parts.written(top);
}

}  // namespace jaxexp::runtime::adapt

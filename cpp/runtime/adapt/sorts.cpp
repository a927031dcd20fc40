// XLA sorts with the C++ library, which leaves the array where a comparator is no order and the sort need not be
// stable. A stable sort stays within, and is one of those that an unstable sort may be.
#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

constexpr std::string_view is_stable = "is_stable";

/// Whether anything was changed.
bool make_stable(refine::Tables& tables, refine::Block& block) {
  bool is_changed = false;
  for (refine::Operation& one : block.operations) {
    const refine::Tables::Kind& kind = tables.kind(one.kind);
    if (kind.is_vhlo && kind.base == "sort" && !tables.boolean(tables.needed(one, is_stable))) {
      tables.replace_attribute(one, is_stable, tables.boolean_attribute(true));
      is_changed = true;
    }
    for (auto& region : one.regions)
      for (refine::Block& inside : region) is_changed |= make_stable(tables, inside);
  }
  return is_changed;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> with_stable_sorts(std::span<const std::uint8_t> module,
                                                           const wire::Path& where) {
  refine::Parts parts(module, where);
  refine::Block top = parts.code().top;
  if (!make_stable(parts.tables(), top)) return std::nullopt;
  return parts.written(top);
}

}  // namespace jaxexp::runtime::adapt

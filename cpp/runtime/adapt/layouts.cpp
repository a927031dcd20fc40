// XLA lays out arguments and results as attributes say, and here all of them are row-major. A string may be shared, and
// has its size in front of it, so the name of such an attribute becomes one of the same size that nobody reads.
#include <algorithm>

#include "runtime/adapt/adapt.h"
#include "wire/bytecode/names.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::adapt {

std::optional<std::vector<std::uint8_t>> without_layouts(std::span<const std::uint8_t> module,
                                                         const wire::Path& where) {
  constexpr std::string_view of_layouts[] = {
      "mhlo.layout_mode", "mhlo.xla_entry_computation_parameter_layouts", "mhlo.xla_entry_computation_parameter_tiles",
      "mhlo.xla_entry_computation_result_layout", "mhlo.xla_entry_computation_result_tiles"};
  wire::Sections sections(module, where);
  sections.find();
  const wire::Names names(sections);
  std::optional<std::vector<std::uint8_t>> changed;
  for (const std::string_view name : names.strings) {
    if (std::ranges::find(of_layouts, name) == std::end(of_layouts)) continue;
    if (!changed) changed.emplace(module.begin(), module.end());
    const auto* const last = reinterpret_cast<const std::uint8_t*>(name.data()) + name.size() - 1;
    (*changed)[static_cast<std::size_t>(last - module.data())] = '_';
  }
  return changed;
}

}  // namespace jaxexp::runtime::adapt

// Only the heads of functions are read: their code takes much longer.
#include <optional>
#include <utility>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Id;

/// The type of the function "main", an attribute.
std::optional<Id> type_of_main(const refine::Tables& tables, const refine::Block& top) {
  for (const refine::Operation& module : top.operations)
    for (const refine::Region& region : module.regions)
      for (const refine::Block& block : region)
        for (const refine::Operation& one : block.operations)
          if (tables.kind(one.kind).full_name() == "vhlo.func_v1" &&
              tables.text(tables.needed(one, "sym_name")) == "main")
            return tables.needed(one, "function_type");
  return std::nullopt;
}

}  // namespace

MainTypes types_of_main(std::span<const std::uint8_t> module, const wire::Path& where) {
  wire::Sections sections(module, where);
  sections.find();
  refine::Tables tables(sections);
  const auto type = type_of_main(tables, refine::read_heads(sections.needed(wire::Section::code), sections.version()));
  if (!type) throw wire::Error(where, "a module with the function 'main'", "one without");
  const auto [arguments, results] = tables.function(*type);
  MainTypes found;
  for (const auto& [types, values] : {std::pair(&arguments, &found.arguments), std::pair(&results, &found.results)})
    for (const Id id : *types) {
      const refine::Type& one = tables.type(id);
      values->push_back({one.is_tensor ? tables.dtype(one.element) : std::string_view(), one.shape});
    }
  return found;
}

std::string ValueType::str() const {
  if (dtype.empty()) return "something else";
  std::string text(dtype);
  text += '[';
  for (std::size_t i = 0; i < sizes.size(); ++i)
    (text += i > 0 ? "," : "") += sizes[i] == refine::dynamic_size ? "?" : std::to_string(sizes[i]);
  return text + ']';
}

}  // namespace jaxexp::runtime::adapt

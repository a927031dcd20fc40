// Fuzz target: a module that passes the check is made static, changed for other plugins, and rid of tokens,
// or refused with an error that can be shown. What is written can be read again, and is the same each time.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"
#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"
#include "runtime/refine/refine.h"
#include "target.h"
#include "wire/base/error.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/sections.h"

namespace {

using namespace jaxexp;
using namespace jaxexp::runtime;
using Bytes = std::span<const std::uint8_t>;

const wire::Path where{nullptr, "module"};

/// Shapes as the main function's arguments have them, with sizes that depend on the bytes.
std::vector<refine::Shape> shapes_for(Bytes module) {
  wire::Sections sections(module, where);
  sections.find();
  refine::Tables tables(sections);
  const refine::Code code = refine::read_code(sections.needed(wire::Section::code), sections.version());
  std::vector<refine::Shape> shapes;
  std::size_t chosen = module.size();
  if (code.top.operations.empty() || code.top.operations.front().regions.empty()) return shapes;
  for (const refine::Block& block : code.top.operations.front().regions.front())
    for (const refine::Operation& one : block.operations) {
      const auto name = tables.attribute(one, "sym_name");
      if (!name || tables.text(*name) != "main" || one.regions.empty() || one.regions.front().empty()) continue;
      for (const auto& argument : one.regions.front().front().arguments) {
        refine::Shape& shape = shapes.emplace_back(tables.type(argument.type).shape);
        for (std::int64_t& size : shape)
          if (size == refine::dynamic_size) size = module[chosen++ * 31 % module.size()] % 7;
      }
      return shapes;
    }
  return shapes;
}

using Changed = std::optional<std::vector<std::uint8_t>>;

/// Changed to other sizes, a module may not pass the check any more; otherwise it has to.
enum class Keeps { validity, nothing };

std::string outcome(Bytes module, Keeps keeps, const std::function<Changed()>& change) {
  bool is_written = false;
  try {
    wire::check_bytecode(module, where);
    if (wire::Sections(module, where).version() > wire::newest_bytecode) return {};  // which the check lets pass
    const Changed found = change();
    if (!found) return "the same";
    is_written = keeps == Keeps::validity;
    // Tables keep what nothing refers to any more.
    wire::check_bytecode(*found, where);
    wire::Sections sections(*found, where);
    sections.find();
    refine::read_code(sections.needed(wire::Section::code), sections.version());
    return {found->begin(), found->end()};
  } catch (const RunError& error) {
    const std::string text = error.what();
    tests::require(!text.empty() && text.find('\n') == text.npos && tests::is_utf8(text), "an error can be shown");
    return text;
  } catch (const wire::Error& error) {
    tests::require(!is_written, "what is written passes the check");
    return error.expected + '|' + error.found;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes module{data, size};
  const adapt::Changes::Targets all = [](std::string_view) { return true; };
  const auto changed = [&](const adapt::Changes& changes) {
    return std::pair<Keeps, std::function<Changed()>>(Keeps::validity,
                                                      [=] { return adapt::changed(module, where, changes); });
  };
  const std::pair<Keeps, std::function<Changed()>> changes[] = {
      {Keeps::nothing, [&] { return refine::with_shapes(module, where, shapes_for(module)); }},
      changed({.comparisons = true}),
      changed({.constants = true}),
      changed({.indices = true}),
      changed({.sorts = true}),
      changed({.convolutions = true}),
      changed({.older_words = true}),
      changed({.without_layouts = all}),
      changed({.typed = all}),
      changed({true, true, true, true, true, true, all, all}),
      {Keeps::validity, [&] { return adapt::without_layouts(module, where); }},
      {Keeps::validity, [&] { return Changed(adapt::without_tokens(module, where, size % 3)); }},
  };
  for (const auto& [keeps, change] : changes)
    tests::require(outcome(module, keeps, change) == outcome(module, keeps, change),
                   "the same module for the same one");
  return 0;
}

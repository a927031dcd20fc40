// What is read was checked, and so is what was written: a plugin's reader trusts both.
#include "runtime/refine/refine.h"

#include <string>
#include <utility>

#include "runtime/refine/code.h"
#include "runtime/refine/refiner.h"
#include "runtime/refine/tables.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::refine {
namespace {

using wire::Section;

void put_section(std::vector<std::uint8_t>& module, Section kind, std::string_view content) {
  std::string head(1, static_cast<char>(kind));
  put_number(head, content.size());
  module.insert(module.end(), head.begin(), head.end());
  module.insert(module.end(), content.begin(), content.end());
}

}  // namespace

std::optional<std::vector<std::uint8_t>> with_shapes(std::span<const std::uint8_t> module, const wire::Path& where,
                                                     std::span<const Shape> arguments) {
  wire::check_bytecode(module, where);
  wire::Sections sections(module, where);
  if (sections.version() > wire::newest_bytecode) refuse("it is written in a newer MLIR bytecode than is known here");
  sections.find();
  Tables tables(sections);
  if (!tables.has_dynamic_types()) return std::nullopt;
  const Code code = read_code(sections.needed(Section::code), sections.version());
  const std::string refined = written(Refiner(tables, code, module.size()).refined(arguments), sections.version());

  std::vector<std::uint8_t> found(module.begin(), module.begin() + sections.head_size());
  const auto copy = [&](Section kind) {
    if (!sections[kind]) return;
    wire::Cursor content = *sections[kind];
    const auto bytes = content.bytes(content.left());
    put_section(found, kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  // What stands in resources has places of its own, and nothing that JAX exports has any.
  if (const auto& resources = sections[Section::resources]; resources && resources->left() > 1)
    refuse("it has resources");
  const auto [entries, offsets] = tables.written_entries();
  put_section(found, Section::dialects, tables.written_dialects());
  put_section(found, Section::entry_offsets, offsets);
  put_section(found, Section::entries, entries);
  put_section(found, Section::code, refined);
  copy(Section::resource_offsets);
  copy(Section::resources);
  put_section(found, Section::strings, tables.written_strings());
  if (sections.version() >= wire::since::native_properties)
    put_section(found, Section::properties, tables.written_properties());
  wire::check_bytecode(found, where);
  return found;
}

}  // namespace jaxexp::runtime::refine

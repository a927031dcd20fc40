// What is read was checked, and so is what was written: a plugin's reader trusts both.
#include "runtime/refine/parts.h"

#include <string>
#include <utility>

#include "runtime/refine/shape.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::runtime::refine {
namespace {

using wire::Section;

void put_section(std::vector<std::uint8_t>& module, Section kind, std::string_view content) {
  std::string head(1, static_cast<char>(kind));
  put_number(head, content.size());
  module.insert(module.end(), head.begin(), head.end());
  module.insert(module.end(), content.begin(), content.end());
}

wire::Sections checked(std::span<const std::uint8_t> module, const wire::Path& where) {
  wire::check_bytecode(module, where);
  wire::Sections sections(module, where);
  if (sections.version() > wire::newest_bytecode) refuse("it is written in a newer MLIR bytecode than is known here");
  sections.find();
  return sections;
}

}  // namespace

Parts::Parts(std::span<const std::uint8_t> module, const wire::Path& where)
    : module_(module), where_(where), sections_(checked(module, where)), tables_(sections_) {}

Code Parts::code() const { return read_code(sections_.needed(Section::code), sections_.version()); }

std::vector<std::uint8_t> Parts::written(const Block& top) const {
  const std::string code = refine::written(top, sections_.version());
  std::vector<std::uint8_t> found(module_.begin(), module_.begin() + sections_.head_size());
  const auto copy = [&](Section kind) {
    if (!sections_[kind]) return;
    wire::Cursor content = *sections_[kind];
    const auto bytes = content.bytes(content.left());
    put_section(found, kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  // What stands in resources has places of its own, and nothing that JAX exports has any.
  if (const auto& resources = sections_[Section::resources]; resources && resources->left() > 1)
    refuse("it has resources");
  const auto [entries, offsets] = tables_.written_entries();
  put_section(found, Section::dialects, tables_.written_dialects());
  put_section(found, Section::entry_offsets, offsets);
  put_section(found, Section::entries, entries);
  put_section(found, Section::code, code);
  copy(Section::resource_offsets);
  copy(Section::resources);
  put_section(found, Section::strings, tables_.written_strings());
  if (sections_.version() >= wire::since::native_properties)
    put_section(found, Section::properties, tables_.written_properties());
  wire::check_bytecode(found, where_);
  return found;
}

}  // namespace jaxexp::runtime::refine

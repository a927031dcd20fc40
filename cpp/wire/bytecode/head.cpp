// The tables of a module's head, read without MLIR.
#include "wire/bytecode/head.h"

#include <algorithm>
#include <string>

#include "wire/base/utf8.h"
#include "wire/bytecode/entries.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::wire {
namespace {

/// A producer's name is short; the end of a damaged one may be far away.
constexpr std::size_t longest_beginning = 256;

/// How the builtin dialect numbers a string, and the locations that begin with one: a name, a file.
constexpr std::uint64_t string_attribute = 2, typed_string = 3, file_location = 11, name_location = 14, file_range = 22;
constexpr std::uint64_t no_attribute = UINT64_MAX;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_absolute_path(std::string_view name) {
  if (name.size() > 3 && is_letter(name[0]) && name[1] == ':') return name[2] == '\\' || name[2] == '/';
  return name.size() > 1 && name[0] == '/' && name[1] != '/';
}

/// The names in a module's locations.
struct Located {
  std::set<std::string_view> files, scopes;
};

Located located(const Sections& sections, const Names& names) {
  const Entries entries(sections.needed(Section::entries), sections.needed(Section::entry_offsets), names.dialects);
  const auto kind_of = [&](std::size_t i, Cursor& entry) -> std::uint64_t {
    return entries.encoded(i) && entries.dialect(i) == "builtin" ? entry.number() : no_attribute;
  };
  Located found;
  for (std::size_t i = 0; i < entries.attributes(); ++i) {
    Cursor location = entries.data(i);
    const std::uint64_t kind = kind_of(i, location);
    if (kind != name_location && kind != file_location && kind != file_range) continue;
    const std::size_t first = location.index(entries.attributes(), "attributes");
    Cursor attribute = entries.data(first);
    if (const auto of_name = kind_of(first, attribute); of_name != string_attribute && of_name != typed_string)
      continue;
    (kind == name_location ? found.scopes : found.files)
        .insert(names.strings[attribute.index(names.strings.size(), "strings")]);
  }
  return found;
}

}  // namespace

Head read_head(std::span<const std::uint8_t> module, const Path& where) {
  if (!begins_like_bytecode(module)) {
    const auto beginning = module.first(std::min<std::size_t>(module.size(), 4));
    const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
    throw Error(where, "a StableHLO portable artifact", "bytes that begin with '" + escaped(text) + "'");
  }
  Sections sections(module, where);
  sections.find();
  Names names(sections);
  const Entries entries(sections.needed(Section::entries), sections.needed(Section::entry_offsets), names.dialects);
  Head head{sections.producer(), names.dialects, {}, {}, {}};
  for (const Names::Operation& operation : names.operations) head.operations.insert(names.full_name_of(operation));
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (entries.encoded(i))
      (i < entries.attributes() ? head.attributes : head.types).emplace(entries.dialect(i), entries.data(i).number());
  return head;
}

std::set<std::string_view> absolute_paths(std::span<const std::uint8_t> module, const Path& where) {
  Sections sections(module, where);
  sections.find();
  const Names names(sections);
  std::set<std::string_view> paths;
  for (const std::string_view name : names.strings)
    if (is_absolute_path(name) && is_utf8({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()}))
      paths.insert(name);
  if (paths.empty()) return paths;
  // JAX's name of an operation outside of all scopes begins with a slash, too: "/dimension_size[dimension=0]".
  const auto [files, scopes] = located(sections, names);
  std::erase_if(paths, [&](std::string_view name) { return scopes.contains(name) && !files.contains(name); });
  return paths;
}

std::set<std::string_view> source_files(std::span<const std::uint8_t> module, const Path& where) {
  Sections sections(module, where);
  sections.find();
  return located(sections, Names(sections)).files;
}

std::optional<std::string_view> producer_of(std::span<const std::uint8_t> module) {
  try {
    return Sections(module.first(std::min(module.size(), longest_beginning)), {}).producer();
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::span<const std::uint8_t> bytes_of_names(std::span<const std::uint8_t> module) {
  try {
    const Path where;
    Sections sections(module, where);
    sections.find();
    Cursor strings = sections.needed(Section::strings);
    return strings.bytes(strings.left());
  } catch (const Error&) {
    return module;
  }
}

}  // namespace jaxexp::wire

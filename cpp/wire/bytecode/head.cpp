// The tables of a module's head, read without MLIR.
#include "wire/bytecode/head.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "wire/base/text.h"

namespace jaxexp::wire {
namespace {

/// A producer's name is short; the end of a damaged one may be far away.
constexpr std::size_t longest_beginning = 256;

/// How the builtin dialect numbers a string, and the locations that begin with one: a name, a file.
constexpr std::uint64_t string_attribute = 2, typed_string = 3, file_location = 11, name_location = 14, file_range = 22;
constexpr std::uint64_t no_attribute = UINT64_MAX;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_absolute_path(std::string_view name) {
  if (name.size() > 3 && is_letter(name[0]) && name[1] == ':') return name[2] == '\\' || name[2] == '/';
  return name.size() > 1 && name[0] == '/' && name[1] != '/';
}

/// The names in a module's locations.
struct Located {
  std::set<std::string_view> scopes;
  std::vector<SourceLocation> files;
};

/// The kind of an attribute of the builtin dialect, which `entry` begins with.
std::uint64_t kind_of(const EntryTable& entries, std::size_t i, Cursor& entry) {
  return entries.encoded(i) && entries.dialect(i) == "builtin" ? entry.number() : no_attribute;
}

Located located(const EntryTable& entries, const Names& names) {
  Located found;
  for (std::size_t i = 0; i < entries.attributes(); ++i) {
    Cursor location = entries.data(i), whole = location;
    const std::uint64_t kind = kind_of(entries, i, location);
    if (kind != name_location && kind != file_location && kind != file_range) continue;
    const std::size_t first = location.index(entries.attributes(), "attributes");
    Cursor attribute = entries.data(first);
    const auto of_name = kind_of(entries, first, attribute);
    if (of_name != string_attribute && of_name != typed_string) continue;
    const std::string_view name = names.strings[attribute.index(names.strings.size(), "strings")];
    if (kind == name_location)
      found.scopes.insert(name);
    else
      found.files.push_back({name, whole.bytes(whole.left())});
  }
  return found;
}

/// Whether the text of an attribute is one of a location, which MLIR writes in bytes.
bool is_location(std::span<const std::uint8_t> entry) {
  std::string_view text(reinterpret_cast<const char*>(entry.data()), entry.size());
  while (!text.empty() && (text.starts_with("//") || is_space(text[0])))  // MLIR's lexer skips comments
    text.remove_prefix(text[0] == '/' ? std::min(text.find_first_of("\r\n"), text.size()) : 1);
  return text.starts_with("loc");
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
  const EntryTable entries(sections.needed(Section::entries), sections.needed(Section::entry_offsets), names.dialects);
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
  const EntryTable entries(sections.needed(Section::entries), sections.needed(Section::entry_offsets), names.dialects);
  Located found = located(entries, names);
  for (const SourceLocation& location : found.files) found.scopes.erase(location.file);
  std::erase_if(paths, [&](std::string_view name) { return found.scopes.contains(name); });
  return paths;
}

Sources read_sources(std::span<const std::uint8_t> module, const Path& where) {
  Sections sections(module, where);
  sections.find();
  const Names names(sections);
  const EntryTable entries(sections.needed(Section::entries), sections.needed(Section::entry_offsets), names.dialects);
  Sources sources{located(entries, names).files, {}};
  for (std::size_t i = 0; i < entries.attributes(); ++i) {
    Cursor entry = entries.data(i);
    if (!entries.encoded(i) && is_location(entry.bytes(entry.left())))
      throw Error(where, "locations that are no texts, as MLIR writes them", "a text");
    if (entries.encoded(i) && kind_of(entries, i, entry) == string_attribute)
      sources.texts.emplace_back(i, names.strings[entry.index(names.strings.size(), "strings")]);
  }
  return sources;
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

// XLA shows the line of the source where something is wrong, and opens whatever file a location names: one with a
// secret, or one that never ends.
//
// Other parts of a module may share the text of a file's name, and the number of a text may need more bytes than there
// are. So the location itself becomes another one of the same size, which is possible because numbers may have more
// bytes than they need: an unknown one, or one in a file that is not here.

namespace {

constexpr std::size_t longest_number = 9;
/// How MLIR's builtin dialect numbers locations.
constexpr std::uint64_t unknown_location = 15;

/// Writes a number as MLIR bytecode has it, in as many bytes as there are: the zeros at the low end of the first one
/// count the bytes that follow.
void put_number(std::span<std::uint8_t> bytes, std::uint64_t number) {
  const std::size_t size = bytes.size();
  if (size < longest_number) number = number << size | std::uint64_t{1} << (size - 1);
  std::size_t at = size == longest_number ? (bytes[0] = 0, 1) : 0;
  for (; at < size; ++at, number >>= 8) bytes[at] = static_cast<std::uint8_t>(number);
}

/// Writes numbers that fill these bytes: each takes as many as are left for it.
void put_numbers(std::span<std::uint8_t> bytes, std::span<const std::uint64_t> numbers, const Path& where) {
  for (std::size_t left = numbers.size(); const std::uint64_t number : numbers) {
    const std::size_t size = std::min(bytes.size() - --left, longest_number);
    put_number(bytes.first(size), number);
    bytes = bytes.subspan(size);
  }
  if (!bytes.empty()) throw Error(where, "locations in files as MLIR writes them", "one with more numbers");
}

}  // namespace

bool is_here(std::string_view name) {
  std::error_code ignored;
  return !name.empty() && status(std::filesystem::path(name), ignored).type() != std::filesystem::file_type::not_found;
}

std::optional<std::vector<std::uint8_t>> without_sources(std::span<const std::uint8_t> module, const Path& where,
                                                         const std::function<bool(std::string_view)>& is_there) {
  const Sources sources = read_sources(module, where);
  std::map<std::string_view, bool> known;
  const auto is_known = [&](std::string_view name) {
    const auto [found, is_new] = known.try_emplace(name);
    if (is_new) found->second = is_there(name);
    return found->second;
  };
  std::optional<std::vector<std::uint8_t>> changed;
  for (const auto& [file, bytes] : sources.locations) {
    if (!is_known(file)) continue;
    if (!changed) changed.emplace(module.begin(), module.end());
    const auto begin = static_cast<std::size_t>(bytes.data() - module.data());
    const auto place = std::span(*changed).subspan(begin, bytes.size());
    if (place.size() <= longest_number) {
      put_number(place, unknown_location);
      continue;
    }
    const auto other = std::ranges::find_if_not(sources.texts, is_known, [](auto& text) { return text.second; });
    if (other == sources.texts.end()) throw Error(where, "a text that is not the name of a file here", "no such text");
    put_number(place.first(1), file_location);
    put_numbers(place.subspan(1), std::array{other->first, std::uint64_t{0}, std::uint64_t{0}}, where);
  }
  return changed;
}

}  // namespace jaxexp::wire

// From an index's table of a member.
#include "wire/archive/member.h"

#include "wire/archive/limits.h"
#include "wire/artifact/layout.h"
#include "wire/base/text.h"

namespace jaxexp::wire {
namespace {

Text text(const flatbuffers::String* string, Member::Texts& texts) {
  if (!string) return {};
  const auto [place, is_new] = texts.try_emplace(string);
  if (is_new) place->second = string->str();
  return place->second;
}

std::optional<Text> optional_text(const flatbuffers::String* string, Member::Texts& texts) {
  return string ? std::optional(text(string, texts)) : std::nullopt;
}

}  // namespace

Member Member::of(const schema::Member& table, Texts& texts) {
  const schema::Place& place = *table.place();
  Member member{
      .summary = {.fun_name = text(table.fun_name(), texts),
                  .jax_version = optional_text(table.jax_version(), texts),
                  .writer = text(table.writer(), texts),
                  .platforms = text(table.platforms(), texts),
                  .nr_devices = table.nr_devices(),
                  .arguments = text(table.arguments(), texts),
                  .argument_count = table.argument_count(),
                  .results = text(table.results(), texts),
                  .result_count = table.result_count()},
      .digest = stored(*table.digest()),
      .size = table.size(),
      .metadata = optional_text(table.metadata(), texts),
      .own_metadata = table.own_metadata(),
      .place = {place.position(), place.size(), place.crc32(), place.header(), place.shared(), place.apart()},
  };
  for (std::uint32_t i = 0; table.modules() && i < table.modules()->size(); ++i) {
    const schema::Module& module = *table.modules()->Get(i);
    member.modules.push_back({module.position(), module.size(), stored(module.digest())});
  }
  return member;
}

// Names may be hostile, and they become paths and are printed on terminals.

namespace {

std::uint32_t code_point(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return first;
  if (first < 0xE0) return (first & 0x1F) << 6 | (byte(1) & 0x3F);
  if (first < 0xF0) return (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

bool is_invisible(std::uint32_t c) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return c >= first && c <= last; };
  return c < 0x20 || within(0x7F, 0x9F) || within(0x200B, 0x200F) || within(0x2028, 0x202E) || within(0x2060, 0x2069) ||
         c == 0x061C || c == 0xFEFF;
}

}  // namespace

std::string wrong_with_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > max_name_size) return "it has more than " + std::to_string(max_name_size) + " bytes";
  if (!is_utf8({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()})) return "it is not UTF-8";
  for (std::size_t i = 0; i < name.size(); ++i) {
    if ((name[i] & 0xC0) == 0x80) continue;
    if (name[i] == '\\') return "it has a backslash";
    if (is_invisible(code_point(name, i))) return "it has a control character";
  }
  const bool is_letter = (name[0] >= 'A' && name[0] <= 'Z') || (name[0] >= 'a' && name[0] <= 'z');
  if (is_letter && name.substr(1, 1) == ":") return "it begins with a drive";
  for (std::size_t start = 0;;) {
    const std::size_t slash = name.find('/', start);
    const std::string_view part = name.substr(start, slash - start);
    if (part.empty()) return start == 0 ? "it is an absolute path" : "a part between its slashes is empty";
    if (part == "." || part == "..") return "it has the part '" + std::string(part) + "'";
    if (start == 0 && part == reserved_folder) return "'" + std::string(part) + "' is the archive's own folder";
    if (slash == std::string_view::npos) return {};
    start = slash + 1;
  }
}

}  // namespace jaxexp::wire

// Names may be hostile, and they become paths and are printed on terminals.
#include "wire/archive/member_name.h"

#include <cstdint>

#include "wire/archive/limits.h"
#include "wire/base/utf8.h"

namespace jaxexp::wire {
namespace {

/// The code point at a place of a text that is UTF-8.
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

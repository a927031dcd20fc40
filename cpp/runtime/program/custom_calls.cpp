// No function of the C API tells which custom calls a plugin has. Asking its compiler about one of them, by a module
// made for that, is no way: compilers crash on calls of their own whose operands are not those that they expect. So the
// module itself is compiled, and the plugin's error is searched for names.
#include <algorithm>
#include <iterator>

#include "runtime/program/program.h"
#include "wire/base/error.h"

namespace jaxexp::runtime {
namespace {

constexpr std::size_t searched = 4096, shown = 8;  // characters of an error, names

bool is_part_of_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '$';
}

/// Whether a text has a name that does not go on before or behind it.
bool names(std::string_view text, std::string_view name) {
  if (name.empty()) return false;
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_part_of_name(text[at - 1])) && (end == text.size() || !is_part_of_name(text[end]))) return true;
  }
  return false;
}

std::string list(const std::vector<std::string_view>& targets) {
  std::string text;
  for (std::size_t i = 0; i < std::min(targets.size(), shown); ++i)
    (text += i > 0 ? ", " : "") += wire::shortened(targets[i]);
  if (targets.size() > shown) text += " and " + std::to_string(targets.size() - shown) + " more";
  return text;
}

}  // namespace

std::string Program::refused_custom_calls(std::string_view error) const {
  error = error.substr(0, searched);
  std::vector<std::string_view> refused;
  std::ranges::copy_if(custom_calls, std::back_inserter(refused), [&](auto target) { return names(error, target); });
  if (refused.empty()) return {};
  std::string text = list(refused);
  if (custom_calls.size() > refused.size()) text += "; all its custom calls are " + list(custom_calls);
  return text;
}

}  // namespace jaxexp::runtime

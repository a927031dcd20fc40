#include "runtime/plugin/flags.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace jaxexp::runtime {
namespace {

constexpr const char* spaces = " \t\r\n";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(spaces);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(spaces) + 1 - first);
}

}  // namespace

std::string xla_flags() {
  const std::string text = variable("XLA_FLAGS"), flags = trimmed(text);
  if (text.empty() || flags.starts_with('-')) return flags;
  std::ifstream file(text, std::ios::binary);
  return trimmed({std::istreambuf_iterator<char>(file), {}});
}

std::string libtpu_flags() { return trimmed(variable("LIBTPU_INIT_ARGS")); }

}  // namespace jaxexp::runtime

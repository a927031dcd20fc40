// python/jaxexp/_api/cases/machine.py names the same facts.
#include "runtime/cases/machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "jaxexp/version.h"
#include "runtime/plugin/flags.h"
#include "wire/base/error.h"

#if __has_include(<sys/utsname.h>)
#include <sys/utsname.h>
#endif

namespace jaxexp::runtime {
namespace {

constexpr std::array shortest = {"jax", "jaxlib", "jaxexp", "platform", "device"};
// What a recording says of tolerances, and not of where it was made.
constexpr std::array of_tolerances = {"measured", "measured by", "unstable"};

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == text.npos ? "" : text.substr(first, last - first + 1);
}

std::string processor() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);)
    if (const auto colon = line.find(':'); colon != line.npos && trimmed(line.substr(0, colon)) == "model name")
      return trimmed(line.substr(colon + 1));
  return "";
}

/// As in "linux x86_64".
std::string system_name() {
#if __has_include(<sys/utsname.h>)
  utsname said;
  if (uname(&said) != 0) return "";
  std::string name = said.sysname;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name + ' ' + said.machine;
#else
  return "";
#endif
}

std::string flags() {
  std::istringstream words(xla_flags());
  std::multiset<std::string> sorted;
  for (std::string word; words >> word;) sorted.insert(word);
  std::string text;
  for (const std::string& word : sorted) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string fact(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

}  // namespace

Environment environment(const Runtime& runtime) {
  Environment facts = {{"platform", std::string(runtime.platform())},
                       {"devices", std::to_string(runtime.nr_devices())},
                       {"jaxexp", JAXEXP_VERSION},
                       {"system", system_name()},
                       {"processor", processor()},
                       {"XLA_FLAGS", flags()}};
  std::erase_if(facts, [](const auto& one) { return one.second.empty(); });
  return facts;
}

std::string in_short(const Environment& environment, const Environment& other) {
  std::vector<std::string> keys;
  for (const char* const key : shortest)
    if (!fact(environment, key).empty()) keys.push_back(key);
  std::set<std::string> rest;
  for (const Environment* const facts : {&environment, &other})
    for (const auto& [key, value] : *facts)
      if (std::ranges::find(shortest, key) == shortest.end() &&
          std::ranges::find(of_tolerances, key) == of_tolerances.end() && fact(environment, key) != fact(other, key))
        rest.insert(key);
  keys.insert(keys.end(), rest.begin(), rest.end());
  std::string text;
  for (const std::string& key : keys) {
    const std::string value = fact(environment, key);
    constexpr std::size_t longest = 240;
    text += (text.empty() ? "" : ", ") + key + ' ' + (value.empty() ? "none" : wire::shortened(value, longest));
  }
  return text;
}

}  // namespace jaxexp::runtime

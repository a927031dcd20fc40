// Results as `jaxexp run` of the Python package prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "jaxexp/runtime.h"

namespace jaxexp::command {

/// As in "1,234,567".
inline std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

/// As in "1 case" and "1,000 cases".
inline std::string counted(std::size_t number, const std::string& what) {
  return with_commas(number) + ' ' + what + (number == 1 ? "" : "s");
}

/// The lines of a page: dtypes, shapes and ranges of all results, and the numbers of small ones. Throws RunError.
std::vector<std::string> shown(const std::string& title, const std::vector<Value>& values,
                               const std::vector<Array>& results);

}  // namespace jaxexp::command

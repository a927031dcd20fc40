// Numbers in lines for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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

}  // namespace jaxexp::command

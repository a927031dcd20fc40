// Numbers in lines for people.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::runtime {

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

/// As in "[2, 3]", and in "[2,3]" for a shape.
inline std::string in_brackets(const std::vector<std::int64_t>& numbers, std::string_view separator = ", ") {
  std::string text;
  for (const std::int64_t number : numbers)
    (text += text.empty() ? std::string_view() : separator) += std::to_string(number);
  return '[' + text + ']';
}

inline std::string three_digits(double number) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g", number);
  return text.data();
}

}  // namespace jaxexp::runtime

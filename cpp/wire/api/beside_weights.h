// How Python counts the arguments of a function whose first argument is a dict of weights.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace jaxexp::wire {

/// The path at the beginning of a text, where the function gets its weights by itself: "args[0]['w']" becomes
/// "weights['w']", and "args[1]" "args[0]".
inline std::string beside_weights(const std::string& text) {
  std::size_t number = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "args[%9zu]%n", &number, &end) != 1 || end == 0) return text;
  const std::string rest = text.substr(static_cast<std::size_t>(end));
  return (number == 0 ? "weights" : "args[" + std::to_string(number - 1) + ']') + rest;
}

/// The other way: where the function takes its weights as an argument.
inline std::string with_weights(const std::string& text) {
  constexpr std::string_view weights = "weights[";
  if (text.starts_with(weights)) return "args[0]" + text.substr(weights.size() - 1);
  std::size_t number = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "args[%9zu]%n", &number, &end) != 1 || end == 0) return text;
  return "args[" + std::to_string(number + 1) + ']' + text.substr(static_cast<std::size_t>(end));
}

}  // namespace jaxexp::wire

// How Python counts the arguments of a function that gets its weights by itself.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

namespace jaxexp::wire {

/// The path at the beginning of a text, where weights are the first argument of the module and no argument of the call:
/// "args[0]['w']" becomes "weights['w']", and "args[1]" "args[0]".
inline std::string beside_weights(const std::string& text) {
  std::size_t number = 0;
  int end = 0;
  if (std::sscanf(text.c_str(), "args[%9zu]%n", &number, &end) != 1 || end == 0) return text;
  const std::string rest = text.substr(static_cast<std::size_t>(end));
  return (number == 0 ? "weights" : "args[" + std::to_string(number - 1) + ']') + rest;
}

}  // namespace jaxexp::wire

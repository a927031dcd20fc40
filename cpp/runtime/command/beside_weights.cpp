#include "runtime/command/beside_weights.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace jaxexp::command {

std::string beside_weights(const std::string& text) {
  constexpr std::string_view start = "args[";
  if (!text.starts_with(start)) return text;
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + start.size(), end, number);
  if (error != std::errc{} || rest == end || *rest != ']') return text;
  if (number == 0) return "weights" + std::string(rest + 1, end);
  return std::string(start) + std::to_string(number - 1) + std::string(rest, end);
}

std::vector<Value> beside_weights(std::vector<Value> arguments) {
  for (Value& argument : arguments) argument.path = beside_weights(argument.path);
  return arguments;
}

}  // namespace jaxexp::command

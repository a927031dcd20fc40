// As `jaxexp run` reads them, except that complex numbers and keys take files.
#include "runtime/command/scalars.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>

#include "runtime/command/arguments.h"
#include "runtime/command/small_float.h"

namespace jaxexp::command {
namespace {

struct Parsed {
  std::string expected;
  std::optional<Array> array;
};

template <class T>
Parsed integer(const std::string& text) {
  using Limits = std::numeric_limits<T>;
  Parsed parsed{"an integer from " + std::to_string(Limits::min()) + " to " + std::to_string(Limits::max()) + ", or ",
                {}};
  T number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end) parsed.array = Array(number);
  return parsed;
}

/// The nearest number of a float of 16 bits; halfway, the even one.
Array in_16_bits(const std::string& dtype, double number) {
  const unsigned code = small_float(dtype)->encoded(number);  // that of NaN is infinity's
  return {dtype, {}, std::make_shared<const std::uint16_t>(static_cast<std::uint16_t>(code + std::isnan(number)))};
}

Parsed real(const std::string& text, const std::string& dtype) {
  char* rest = nullptr;
  const double number = std::strtod(text.c_str(), &rest);
  Parsed parsed{"a number, or ", {}};
  if (text.empty() || rest != text.data() + text.size()) return parsed;
  if (dtype == "float16" || dtype == "bfloat16") parsed.array = in_16_bits(dtype, number);
  if (dtype == "float32") parsed.array = Array(static_cast<float>(number));
  if (dtype == "float64") parsed.array = Array(number);
  return parsed;
}

Parsed boolean(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_true = text == "true" || text == "1", is_false = text == "false" || text == "0";
  return {"true or false, or ", is_true || is_false ? std::optional(Array(is_true)) : std::nullopt};
}

Parsed parsed(const std::string& text, const std::string& dtype) {
  if (dtype == "bool") return boolean(text);
  if (dtype == "float16" || dtype == "bfloat16" || dtype == "float32" || dtype == "float64") return real(text, dtype);
  Parsed found;
  const auto take = [&]<class... Types>(std::tuple<Types...>) {
    static_cast<void>(((dtype == dtype_of<Types>() && (found = integer<Types>(text), true)) || ...));
  };
  take(std::tuple<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                  std::uint64_t>());
  return found;
}

}  // namespace

void refuse_input(const std::string& text, const Value& value, const std::string& expected) {
  throw InputError(value.path + ", " + value.str() + ", takes " + expected + "a .npy file, and not '" + text + "'");
}

Array scalar(const std::string& text, const Value& value) {
  const auto [expected, array] = parsed(text, std::string(value.dtype));
  if (!array) refuse_input(text, value, expected);
  return *array;
}

}  // namespace jaxexp::command

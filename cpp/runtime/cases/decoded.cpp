// Small numbers are in the lower bits of their bytes.
#include "runtime/cases/decoded.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "runtime/cases/small_float.h"
#include "wire/base/unaligned.h"

namespace jaxexp::runtime {
namespace {

using Bytes = std::span<const std::uint8_t>;

template <class T, class Number, class Read>
std::vector<Number> each(Bytes bytes, const Read& read) {
  std::vector<Number> numbers(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = read(wire::load<T>(bytes.data() + i * sizeof(T)));
  return numbers;
}

/// Of so many bits.
template <class T>
std::vector<Whole> integers_of(Bytes bytes, int bits = 8 * sizeof(T)) {
  return each<T, Whole>(bytes, [bits](T number) {
    const auto shift = static_cast<int>(8 * sizeof(T)) - bits;
    const auto whole = static_cast<T>(static_cast<T>(number << shift) >> shift);
    const bool is_negative = whole < 0;
    const auto size = static_cast<std::uint64_t>(whole);
    return Whole{is_negative, is_negative ? 0 - size : size};
  });
}

/// With as many digits as tell it from its neighbours.
template <class T>
std::string shortest(T number) {
  std::array<char, 64> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

}  // namespace

bool is_integer(std::string_view dtype) {
  return dtype == "bool" || dtype.starts_with("int") || dtype.starts_with("uint") || dtype.starts_with("key<");
}

bool is_complex(std::string_view dtype) { return dtype.starts_with("complex"); }

std::vector<double> reals(std::string_view dtype, Bytes bytes) {
  if (dtype == "float64" || dtype == "complex128") return each<double, double>(bytes, [](double x) { return x; });
  const SmallFloat* const format = small_float(dtype);
  if (!format) return each<float, double>(bytes, [](float x) { return x; });
  const auto decode = [&](unsigned bits) { return format->decoded(bits); };
  return format->bytes() == 1 ? each<std::uint8_t, double>(bytes, decode) : each<std::uint16_t, double>(bytes, decode);
}

double Whole::real() const { return is_negative ? -static_cast<double>(size) : static_cast<double>(size); }

double Whole::distance(const Whole& other) const {
  if (is_negative != other.is_negative) return static_cast<double>(size + other.size);
  return static_cast<double>(size > other.size ? size - other.size : other.size - size);
}

std::vector<Whole> integers(std::string_view dtype, Bytes bytes) {
  if (dtype == "int4") return integers_of<std::int8_t>(bytes, 4);
  if (dtype == "uint4") return integers_of<std::uint8_t>(bytes, 4);
  if (dtype == "int8") return integers_of<std::int8_t>(bytes);
  if (dtype == "int16") return integers_of<std::int16_t>(bytes);
  if (dtype == "int32") return integers_of<std::int32_t>(bytes);
  if (dtype == "int64") return integers_of<std::int64_t>(bytes);
  if (dtype == "uint16") return integers_of<std::uint16_t>(bytes);
  if (dtype == "uint32" || dtype.starts_with("key<")) return integers_of<std::uint32_t>(bytes);
  if (dtype == "uint64") return integers_of<std::uint64_t>(bytes);
  return integers_of<std::uint8_t>(bytes);
}

Bits bits_of(std::string_view dtype) {
  if (dtype == "float8_e8m0fnu") return {1, 0};
  if (dtype == "float4_e2m1fn") return {1, 1U << 3};
  const SmallFloat* const format = small_float(dtype);
  const std::size_t bytes = format ? format->bytes() : dtype == "float64" || dtype == "complex128" ? 8 : 4;
  return {static_cast<unsigned>(bytes), std::uint64_t{1} << (8 * bytes - 1)};
}

std::uint64_t ulps(const Bits& bits, const std::uint8_t* one, const std::uint8_t* other) {
  const auto read = [&](const std::uint8_t* bytes) {
    std::uint64_t number = 0;
    for (unsigned i = 0; i < bits.bytes; ++i) number |= std::uint64_t{bytes[i]} << (8 * i);
    return number;
  };
  const std::uint64_t a = read(one), b = read(other), left = a & ~bits.sign, right = b & ~bits.sign;
  if ((a & bits.sign) != (b & bits.sign)) return left + right;
  return left > right ? left - right : right - left;
}

double epsilon(std::string_view dtype) {
  if (const SmallFloat* const format = small_float(dtype)) return std::ldexp(1.0, -format->fraction_bits);
  const bool is_wide = dtype == "float64" || dtype == "complex128";
  return is_wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

std::string Whole::str(std::string_view dtype) const {
  if (dtype == "bool") return size != 0 ? "True" : "False";
  return (is_negative ? "-" : "") + std::to_string(size);
}

std::string text_of(std::string_view dtype, double number) {
  if (std::isnan(number)) return "nan";
  const SmallFloat* const format = small_float(dtype);
  if (!format)
    return dtype == "float32" || dtype == "complex64" ? shortest(static_cast<float>(number)) : shortest(number);
  std::array<char, 64> text;
  int digits = dtype == "float16" ? 1 : 6;  // NumPy has fewest digits for its own dtypes, and ml_dtypes six
  do std::snprintf(text.data(), text.size(), "%.*g", digits, number);
  while (++digits <= 6 && format->encoded(std::strtod(text.data(), nullptr)) != format->encoded(number));
  return text.data();
}

}  // namespace jaxexp::runtime

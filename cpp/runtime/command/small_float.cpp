// Formats as ml_dtypes has them.
#include "runtime/command/small_float.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace jaxexp::command {
namespace {

using Special = SmallFloat::Special;

constexpr SmallFloat formats[] = {
    {"float16", 5, 10, 15, Special::ieee},
    {"bfloat16", 8, 7, 127, Special::ieee},
    {"float8_e5m2", 5, 2, 15, Special::ieee},
    {"float8_e4m3", 4, 3, 7, Special::ieee},
    {"float8_e3m4", 3, 4, 3, Special::ieee},
    {"float8_e4m3fn", 4, 3, 7, Special::finite},
    {"float8_e4m3fnuz", 4, 3, 8, Special::unsigned_zero},
    {"float8_e4m3b11fnuz", 4, 3, 11, Special::unsigned_zero},
    {"float8_e5m2fnuz", 5, 2, 16, Special::unsigned_zero},
    {"float8_e8m0fnu", 8, 0, 127, Special::powers},
    {"float4_e2m1fn", 2, 1, 1, Special::none},
};

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
constexpr unsigned no_power = 255;

/// Halfway between two powers, the larger one is the nearest; it always is between the least ones.
unsigned encoded_power(double number, int bias) {
  if (!(number > 0) || number == infinity) return no_power;
  const int exponent = std::ilogb(number), code = exponent + bias;
  const double rest = std::ldexp(number, -exponent);  // from 1 to below 2
  const int rounded = code + (rest >= 1.5 || (code == 0 && rest > 1));
  return rounded >= static_cast<int>(no_power) ? no_power : static_cast<unsigned>(std::max(rounded, 0));
}

}  // namespace

double SmallFloat::decoded(unsigned bits) const {
  if (special == Special::powers) return bits == no_power ? nan : std::ldexp(1.0, static_cast<int>(bits) - bias);
  const unsigned magnitude = bits & (sign() - 1), fraction = magnitude & ((1U << fraction_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> fraction_bits);
  const bool is_negative = (bits & sign()) != 0;
  double number = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                : std::ldexp(fraction + (1U << fraction_bits), exponent - bias - fraction_bits);
  if (special == Special::ieee && exponent + 1 == 1 << exponent_bits) number = fraction != 0 ? nan : infinity;
  if (special == Special::finite && magnitude == sign() - 1) number = nan;
  if (special == Special::unsigned_zero && is_negative && magnitude == 0) number = nan;
  return is_negative ? -number : number;
}

unsigned SmallFloat::encoded(double number) const {
  if (special == Special::powers) return encoded_power(number, bias);
  const unsigned top = ((1U << exponent_bits) - 1) << fraction_bits;
  unsigned largest = sign() - 1, beyond = largest;
  if (special == Special::ieee) largest = top - 1, beyond = top;
  if (special == Special::finite) largest = sign() - 2;
  if (special == Special::unsigned_zero) beyond = sign();
  const double size = std::abs(number);
  unsigned bits = beyond;
  if (size < infinity) {
    const int least = 1 - bias, exponent = size > 0 ? std::max(std::ilogb(size), least) : least;
    const auto quanta = static_cast<unsigned>(std::nearbyint(std::ldexp(size, fraction_bits - exponent)));
    bits = (static_cast<unsigned>(exponent - least) << fraction_bits) + quanta;
    if (bits > largest) bits = beyond;
  }
  const bool has_no_minus = special == Special::unsigned_zero && (bits == 0 || bits == beyond);
  return std::signbit(number) && !has_no_minus ? bits | sign() : bits;
}

const SmallFloat* small_float(std::string_view dtype) {
  const auto* const found = std::ranges::find(formats, dtype, &SmallFloat::dtype);
  return found == std::end(formats) ? nullptr : found;
}

}  // namespace jaxexp::command

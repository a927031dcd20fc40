// Numbers of any dtype as those of C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::runtime {

/// The dtype of cotangents of integers, which has no numbers.
inline constexpr std::string_view float0 = "float0";

/// Whether numbers of a dtype of cases are integers, bools, or those of a random key.
bool is_integer(std::string_view dtype);
bool is_complex(std::string_view dtype);

/// Floats, two for each complex number.
std::vector<double> reals(std::string_view dtype, std::span<const std::uint8_t> bytes);

/// An integer of any dtype.
struct Whole {
  bool is_negative;
  std::uint64_t size;  // without its sign

  bool operator==(const Whole&) const = default;
  double real() const;
  double distance(const Whole& other) const;
  std::string str(std::string_view dtype) const;
};

std::vector<Whole> integers(std::string_view dtype, std::span<const std::uint8_t> bytes);

/// A part of a number as its bits, of which one may be a sign: what lies between two of them are their units in the
/// last place.
struct Bits {
  unsigned bytes;      // of a part
  std::uint64_t sign;  // 0 where there is none
};
Bits bits_of(std::string_view dtype);
/// By their numbers of ulps.
std::uint64_t ulps(const Bits& bits, const std::uint8_t* one, const std::uint8_t* other);

/// 2 to the power of minus the bits of a fraction.
double epsilon(std::string_view dtype);

/// A float as people read it.
std::string text_of(std::string_view dtype, double number);

}  // namespace jaxexp::runtime

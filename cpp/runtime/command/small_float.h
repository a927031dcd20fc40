// Floats of less than 32 bits, which C++ has no types for.
#pragma once

#include <cstddef>
#include <string_view>

namespace jaxexp::command {

/// A sign if the format has one, then the exponent, then the fraction.
struct SmallFloat {
  /// What has no number: as in IEEE 754; no infinities, and NaN where all bits are set; no infinities and no negative
  /// zero, in whose place is NaN; nothing; powers of two, and NaN where all bits are set.
  enum class Special { ieee, finite, unsigned_zero, none, powers };

  std::string_view dtype;
  int exponent_bits, fraction_bits, bias;
  Special special;

  std::size_t bytes() const { return exponent_bits + fraction_bits > 8 ? 2 : 1; }
  double decoded(unsigned bits) const;
  /// Rounded as docs/formats/cases.md says.
  unsigned encoded(double number) const;

 private:
  unsigned sign() const { return 1U << (exponent_bits + fraction_bits); }
};

const SmallFloat* small_float(std::string_view dtype);

}  // namespace jaxexp::command

// Convolutions of which XLA computes numbers from outside of its arrays on a CPU.
#pragma once

#include <cstdint>
#include <span>

#include "wire/bytecode/tables.h"

namespace jaxexp::wire {

/// What may be wrong with a convolution, as bits.
struct Doubts {
  /// It has 2^24 places or more in a dimension of its input, with its padding, or of its kernel, or a stride or a
  /// distance that is as large, because XLA counts places in 32-bit floats on CPUs; or padding that takes away in front
  /// and adds behind, where older releases do not know where they are.
  static constexpr unsigned reads_outside = 1;
  /// Its padding takes away in front. What other operations add behind, XLA makes a part of the padding.
  static constexpr unsigned takes_away = 2;
};

/// The attributes are those of `convolution_v1`, in the order of the table in operations.cpp; where sizes are open,
/// nothing is known of the places.
unsigned doubts_of(const AttributesAndTypes& tables, std::span<const std::uint32_t> attributes,
                   std::span<const std::uint32_t> operands);

}  // namespace jaxexp::wire

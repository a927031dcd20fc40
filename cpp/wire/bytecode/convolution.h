// Convolutions of which XLA computes numbers from outside of its arrays on a CPU.
#pragma once

#include <cstdint>
#include <span>

#include "wire/bytecode/tables.h"

namespace jaxexp::wire {

/// Whether a convolution has 2^24 places or more in a dimension of its input, with its padding, or of its kernel, or a
/// stride or a distance that is as large, because XLA counts places in 32-bit floats on CPUs; or padding that takes
/// away in front and adds behind, which its older releases add up. The attributes are those of `convolution_v1`, in the
/// order of the table in operations.cpp; where sizes are open, nothing is known of the places.
bool reads_outside(const AttributesAndTypes& tables, std::span<const std::uint32_t> attributes,
                   std::span<const std::uint32_t> operands);

}  // namespace jaxexp::wire

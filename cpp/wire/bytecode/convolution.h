// Convolutions over so many places that XLA counts them wrong on a CPU.
#pragma once

#include <cstdint>
#include <span>

#include "wire/bytecode/tables.h"

namespace jaxexp::wire {

/// Whether a convolution has 2^24 places or more in a dimension of its input, with its padding, or of its kernel, or a
/// stride or a distance that is as large. On CPUs, XLA counts places in 32-bit floats, and reads outside of its arrays
/// where there are more. The attributes are those of `convolution_v1`, in the order of the table in operations.cpp;
/// where sizes are open, nothing is known of the places.
bool counts_far(const AttributesAndTypes& tables, std::span<const std::uint32_t> attributes,
                std::span<const std::uint32_t> operands);

}  // namespace jaxexp::wire

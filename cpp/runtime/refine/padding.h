// Whether arguments that are made larger leave what is computed of the rest as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/refine/shape.h"
#include "wire/base/error.h"

namespace jaxexp::runtime::refine {

/// One array begins with another if the other one is its corner at index 0.
///
/// Nothing is returned where this is proved: for arguments of the shapes `padded` that begin with arguments of the
/// shapes `given`, the module's results begin with the results of these, no matter what else is in the arguments.
/// Otherwise, this says why not, as in "its operation reduce at 'jit(f)/reduce_sum' (f.py:3) mixes what is padded with
/// the rest".
///
/// The module is made static for both shapes, and both are compared, operation by operation. So sizes that play a part
/// in what is computed are found as what they are: constants that differ. An operation without a rule mixes.
///
/// Throws as `with_shapes` does.
std::optional<std::string> why_not_padded(std::span<const std::uint8_t> module, const wire::Path& where,
                                          std::span<const Shape> given, std::span<const Shape> padded);

}  // namespace jaxexp::runtime::refine

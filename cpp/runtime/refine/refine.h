// Modules with symbolic dimensions, made static: what StableHLO's refinement of shapes does, for what JAX exports.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/refine/parts.h"
#include "wire/base/error.h"

namespace jaxexp::runtime::refine {

/// The module for these shapes of its main function's arguments, in the version of StableHLO that it is in. Nothing
/// where no size in it is open.
///
/// Sizes of arguments are constants, and so is what is computed of them. With them, the forms of operations that take
/// sizes as operands become those that have them as attributes, and each result gets the shape that follows from the
/// operands. A function that takes sizes is written once for each set of them.
///
/// Throws RunError with reason `argument` where a shape violates an assertion in the module, and with reason
/// `unsupported` where an operation is not known here. Takes steps and memory in proportion to the module; one whose
/// functions call others over and over with ever new sizes is refused.
///
/// The module has to be checked (wire/bytecode/bytecode.h). `change` may change what is written, which has so many
/// values.
std::optional<std::vector<std::uint8_t>> with_shapes(
    std::span<const std::uint8_t> module, const wire::Path& where, std::span<const Shape> arguments,
    const std::function<void(Tables&, Block& top, Id values)>& change = nullptr);

}  // namespace jaxexp::runtime::refine

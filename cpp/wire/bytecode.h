// Whether a module's bytes can be given to MLIR's reader, which trusts more of them than it should.
#pragma once

#include <cstdint>
#include <span>

#include "error.h"

namespace jaxexp::wire {

/// Checks MLIR bytecode (https://mlir.llvm.org/docs/BytecodeFormat/): that sections, counts, offsets and indices fit,
/// that attributes and types do not contain themselves, that constants have the bytes that their types ask for, and
/// that nothing nests deeper than recursive code can follow. What the bytes mean beyond that is MLIR's to verify.
///
/// Takes time in proportion to the size of the code and the tables; the data of constants is skipped. Kinds of
/// attributes and types that are not known here pass. Throws Error, which says that it was found at `where`.
void check_bytecode(std::span<const std::uint8_t> module, const Path& where);

}  // namespace jaxexp::wire

// Linear algebra on the CPU, as JAX calls it: handlers of its custom calls, which call a LAPACK that is found at run
// time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/plugin/handlers.h"

namespace jaxexp::runtime::lapack {

/// The handler of a target such as "lapack_sgetrf_ffi", or "lapack_sgetrf" of old releases. Null for all others, and
/// where this room was not built.
Handler* handler_of(std::string_view target);

/// Whether a target belongs to a release that passed sizes and choices as operands of an untyped call. Its handler
/// takes a typed call with the same operands and results.
bool is_untyped(std::string_view target);

/// Takes the library in `file` for this process. Throws RunError where it is no LAPACK, where another one was taken
/// before, and where this room was not built.
void use(const std::filesystem::path& file);

/// Finds a LAPACK unless one was found before: the one that $JAXEXP_LAPACK names, or else one of the system. Returns
/// why there is none; empty where one is there. Throws RunError where $JAXEXP_LAPACK names something else.
std::string find();

/// Throws RunError where the LAPACK lacks the routine that a target calls.
void check_routine(std::string_view target);

}  // namespace jaxexp::runtime::lapack

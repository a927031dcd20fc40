// Whether a VJP fits its primal.
#pragma once

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/exported/same.h"

namespace jaxexp::wire {

/// A VJP takes what its primal takes, then a cotangent for each result, and returns one for each argument. Both have to
/// be checked. Throws Error.
void check_vjp(const schema::Exported& primal, const schema::Exported& vjp, const Path& path, Comparison& comparison);

}  // namespace jaxexp::wire

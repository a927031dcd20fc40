// How a RunError reads.
#include "jaxexp/run_error.h"

#include "wire/base/error.h"

namespace jaxexp {

RunError::RunError(Reason reason, const std::string& message)
    : std::runtime_error(wire::escaped(message)), reason_(reason) {}

}  // namespace jaxexp

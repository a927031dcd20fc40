// What the room is without the option JAXEXP_LAPACK of CMake.
#include "runtime/lapack/lapack.h"

namespace jaxexp::runtime::lapack {

Handler* handler_of(std::string_view) { return nullptr; }
bool is_untyped(std::string_view) { return false; }
std::string find() { return {}; }
void check_routine(std::string_view) {}

void use(const std::filesystem::path&) {
  throw RunError(RunError::Reason::unsupported,
                 "this runtime was built without handlers for LAPACK (-DJAXEXP_LAPACK=OFF)");
}

}  // namespace jaxexp::runtime::lapack

// What the environment tells plugins. They read it once; these functions, whenever they are called.
#pragma once

#include <string>

namespace jaxexp::runtime {

/// XLA_FLAGS, or what is in the file that it names: XLA takes whatever does not begin like a flag for a name.
std::string xla_flags();

/// LIBTPU_INIT_ARGS.
std::string libtpu_flags();

}  // namespace jaxexp::runtime

// How many threads Python asks for.
#pragma once

#include <cstddef>

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// The caller's thread counts. Throws ValueError where nobody would work.
inline void check_workers(std::size_t workers) {
  if (workers == 0) throw nanobind::value_error("workers has to be at least 1, found 0");
}

}  // namespace jaxexp::bindings

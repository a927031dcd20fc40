// Room for objects in nanobind's table of them.
#pragma once

#include <cstddef>

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// nanobind ends the process if its table of C++ objects cannot grow. So there is always room in it for some objects
/// that are still to come, beside those that are `alive`. Throws std::bad_alloc or python_error where that is
/// impossible. Needs the GIL.
void keep_room(std::size_t alive);

void define_room(nb::module_& m);

}  // namespace jaxexp::bindings

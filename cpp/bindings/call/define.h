// What Python sees of the arguments of calls.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_call(nb::module_& m);

}  // namespace jaxexp::bindings

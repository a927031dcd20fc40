// Files of executables for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

void define_compiled(nanobind::module_& m);

}  // namespace jaxexp::bindings

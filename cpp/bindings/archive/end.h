// The end of an archive, and the ZIP file's own structures, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_end(nb::module_& m);

}  // namespace jaxexp::bindings

// The end of an archive, and the ZIP file's own structures, for Python.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

void define_end(nb::module_& m);

}  // namespace jaxexp::bindings

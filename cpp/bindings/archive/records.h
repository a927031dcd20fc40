// The members of an archive that is being written, for Python.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

void define_records(nb::module_& m);

}  // namespace jaxexp::bindings

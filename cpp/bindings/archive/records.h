// The members of an archive that is being written, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_records(nb::module_& m);

}  // namespace jaxexp::bindings

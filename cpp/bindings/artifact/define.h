// What Python sees of artifacts.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_artifact(nb::module_& m);

}  // namespace jaxexp::bindings

// What Python sees of many artifacts at once.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_many(nb::module_& m);

}  // namespace jaxexp::bindings

// What Python sees of modules' bytes.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_bytecode(nb::module_& m);

}  // namespace jaxexp::bindings

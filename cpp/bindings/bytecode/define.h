// What Python sees of MLIR bytecode.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

void define_bytecode(nb::module_& m);

}  // namespace jaxexp::bindings

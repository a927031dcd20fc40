// What each room puts into the native module.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

void define_archive(nb::module_& m);
void define_artifact(nb::module_& m);
void define_bytecode(nb::module_& m);
void define_call(nb::module_& m);
void define_compiled(nb::module_& m);
void define_many(nb::module_& m);
void define_tensors(nb::module_& m);

}  // namespace jaxexp::bindings

// What Python sees of archives.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

/// Adds it to the native module.
void define_archive(nb::module_& m);

}  // namespace jaxexp::bindings

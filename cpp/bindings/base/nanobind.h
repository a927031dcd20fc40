// nanobind, by the names that the bindings have for it.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;
using namespace nb::literals;

}  // namespace jaxexp::bindings

// New references of Python's C functions.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

/// Takes over a new reference. Where there is none, as when memory runs out, throws the exception that Python has set.
template <class Object = nb::object>
Object owned(PyObject* reference) {
  if (!reference) throw nb::python_error();
  return nb::steal<Object>(reference);
}

}  // namespace jaxexp::bindings

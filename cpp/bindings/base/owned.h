// New references of Python's C functions.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// Takes over a new reference. Where there is none, as when memory runs out, throws the exception that Python has set.
template <class Object = nb::object>
Object owned(PyObject* reference) {
  if (!reference) throw nb::python_error();
  return nb::steal<Object>(reference);
}

/// Not nanobind's own constructors, which make an object of nothing when memory runs out.
inline nb::dict new_dict() { return owned<nb::dict>(PyDict_New()); }
inline nb::list new_list() { return owned<nb::list>(PyList_New(0)); }

}  // namespace jaxexp::bindings

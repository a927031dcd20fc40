// New references of Python's C functions.
#pragma once

#include <cstddef>
#include <vector>

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
inline nb::set new_set() { return owned<nb::set>(PySet_New(nullptr)); }

/// What is in a sequence of Python. nanobind's own casters to vectors end the process when memory runs out.
template <class T>
std::vector<T> to_vector(nb::handle sequence) {
  std::vector<T> elements;
  for (nb::handle element : sequence) elements.push_back(nb::cast<T>(element));
  return elements;
}

/// A tuple of what `make` makes of each number below `size`.
template <class Make>
nb::tuple new_tuple(std::size_t size, const Make& make) {
  auto tuple = owned<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(size)));
  for (std::size_t i = 0; i < size; ++i)
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), make(i).release().ptr());
  return tuple;
}

}  // namespace jaxexp::bindings

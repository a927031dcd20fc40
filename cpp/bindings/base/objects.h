// New references of Python's C functions.
#pragma once

#include <Python.h>

#include <cstddef>
#include <string_view>
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

/// Text of an artifact that may not be UTF-8.
inline nb::str text(std::string_view bytes) {
  return owned<nb::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

inline nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

/// While it lives, thousands of new objects do not start one collection after another, all in vain. A collector that
/// was off before stays off.
class NoCollections {
 public:
  NoCollections() : enabled_(PyGC_Disable() != 0) {}
  ~NoCollections() {
    if (enabled_) PyGC_Enable();
  }
  NoCollections(const NoCollections&) = delete;
  NoCollections& operator=(const NoCollections&) = delete;

 private:
  bool enabled_;
};

/// The caller's thread counts. Throws ValueError where nobody would work.
inline void check_workers(std::size_t workers) {
  if (workers == 0) throw nanobind::value_error("workers has to be at least 1, found 0");
}

}  // namespace jaxexp::bindings

// The attributes of a function that Python made.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// Straight from the instance's dictionary if an attribute is there. An Exported looks up absent ones by a method in
/// Python, and its `__dict__` decodes all fields.
class Attributes {
 public:
  explicit Attributes(nb::handle object)
      : object_(object), present_(nb::steal(PyObject_GenericGetDict(object.ptr(), nullptr))) {
    if (!present_.is_valid()) PyErr_Clear();
  }

  nb::object operator[](const nb::object& name) const {
    const nb::object found = if_there(name);
    return found.is_valid() ? found : nb::object(object_.attr(name));
  }

  /// Not valid if the dictionary lacks it.
  nb::object if_there(const nb::object& name) const {
    return nb::borrow(present_.is_valid() ? PyDict_GetItemWithError(present_.ptr(), name.ptr()) : nullptr);
  }

 private:
  nb::handle object_;
  nb::object present_;
};

}  // namespace jaxexp::bindings

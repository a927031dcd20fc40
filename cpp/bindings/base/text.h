// Bytes of an artifact as Python text.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace jaxexp::bindings {

namespace nb = nanobind;

/// Text of an artifact that may not be UTF-8.
inline nb::object text(std::string_view bytes) {
  nb::object decoded =
      nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  if (!decoded.is_valid()) throw nb::python_error();
  return decoded;
}

}  // namespace jaxexp::bindings

// Bytes as objects of Python.
#pragma once

#include <string_view>

#include "bindings/base/nanobind.h"
#include "bindings/base/owned.h"

namespace jaxexp::bindings {

/// Text of an artifact that may not be UTF-8.
inline nb::str text(std::string_view bytes) {
  return owned<nb::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

inline nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

}  // namespace jaxexp::bindings

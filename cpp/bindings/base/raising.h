// Exceptions of Python, from C++. jaxexp._errors is imported where an exception is raised: it loads no JAX, and
// importing the native modules needs no package.
#pragma once

#include <exception>
#include <new>
#include <system_error>

#include "bindings/base/nanobind.h"
#include "bindings/base/text.h"

namespace jaxexp::bindings {

/// An exception of jaxexp._errors.
template <class... Arguments>
nb::object make_error(const char* name, const Arguments&... arguments) {
  return nb::module_::import_("jaxexp._errors").attr(name)(arguments...);
}

inline void set_error(const nb::object& error) { PyErr_SetObject(error.type().ptr(), error.ptr()); }

inline void set_os_error(const std::system_error& error) {
  const int number = error.code().value();
  set_error(nb::borrow(PyExc_OSError)(number, text(std::generic_category().message(number))));
}

/// Sets the exception that a translator of nanobind's sets, or the one of Python for those that it lets through.
template <class Translate>
void set_translated(const std::exception_ptr& exception, Translate translate) {
  try {
    translate(exception, nullptr);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& other) {
    PyErr_SetString(PyExc_RuntimeError, other.what());
  }
}

}  // namespace jaxexp::bindings

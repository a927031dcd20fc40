// Errors of the codec as Python exceptions.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {

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

/// What a SerializationError is besides, as in jax.export.
enum class Also { nothing, type_error, key_error };

/// Something in an Exported that the format cannot hold.
struct NotSerializable : std::exception {
  NotSerializable(const wire::Path& where, const std::string& what, Also also = Also::nothing)
      : message("cannot serialize " + where.str() + ": " + what), also(also) {}

  const char* what() const noexcept override { return message.c_str(); }

  std::string message;
  Also also;
};

/// Makes wire::Error, wire::TooLarge and NotSerializable the exceptions of jaxexp._errors.
void translate_errors();

/// Replaces an exception of Python code by a DeserializationError with the exception as its cause. Exceptions that are
/// not about the data (MemoryError, KeyboardInterrupt), or jaxexp's own, go through as they are. To be called from the
/// catch clause.
[[noreturn]] void raise_not_readable(nb::python_error& cause, const wire::Path& where, const char* expected);

/// Raises an exception of Python code again. Where it is a DeserializationError without a path, sets the path. To be
/// called from the catch clause.
[[noreturn]] void raise_at(nb::python_error& cause, const wire::Path& where);

nb::object python_exception(const std::exception_ptr& exception);

/// An ExportTypeError, which is a TypeError too.
nb::object export_type_error(const std::string& message);

/// An object and its type for a message, as in "3 (int)".
std::string describe(nb::handle object);

}  // namespace jaxexp::bindings

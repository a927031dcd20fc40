// jaxexp._errors is imported where an exception is raised.
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "bindings/base/text.h"
#include "bindings/runtime/define.h"

namespace jaxexp::bindings {
namespace {

template <class... Text>
void raise(const char* name, const Text&... arguments) {
  const nb::object error = nb::module_::import_("jaxexp._errors").attr(name)(arguments...);
  PyErr_SetObject(error.type().ptr(), error.ptr());
}

constexpr const char* name_of(RunError::Reason reason) {
  switch (reason) {
    case RunError::Reason::argument: return "argument";
    case RunError::Reason::unsupported: return "unsupported";
    case RunError::Reason::plugin: break;
  }
  return "plugin";
}

/// A file of executables throws the same class; its message says what it is.
const char* class_of(const DeserializationError& error) {
  if (std::string_view(error.what()).starts_with("cannot read the executables")) return "ExecutablesError";
  return error.path().ends_with("mlir_module_serialized") ? "ModuleError" : "DeserializationError";
}

void translate(const std::exception_ptr& exception, void*) {
  try {
    try {
      std::rethrow_exception(exception);
    } catch (const RunError& e) {
      raise("RunError", text(e.what()), name_of(e.reason()));
    } catch (const WeightsError& e) {
      raise("WeightsError", text(e.path()), text(e.expected()), text(e.found()), text(e.file()));
    } catch (const DeserializationError& e) {
      raise(class_of(e), text(e.path()), text(e.expected()), text(e.found()));
    } catch (const std::system_error& e) {
      const int number = e.code().value();
      const nb::object error = nb::borrow(PyExc_OSError)(number, text(std::generic_category().message(number)));
      PyErr_SetObject(error.type().ptr(), error.ptr());
    }
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void set_python_error(const std::exception_ptr& exception) noexcept {
  try {
    translate(exception, nullptr);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& other) {
    PyErr_SetString(PyExc_RuntimeError, other.what());
  }
}

void translate_runtime_errors() { nb::register_exception_translator(translate); }

}  // namespace jaxexp::bindings

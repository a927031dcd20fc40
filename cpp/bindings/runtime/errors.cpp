#include "bindings/base/errors.h"

#include <exception>
#include <string_view>
#include <system_error>

#include "bindings/base/objects.h"
#include "bindings/runtime/define.h"

namespace jaxexp::bindings {
namespace {

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
      set_error(make_error("RunError", text(e.what()), name_of(e.reason())));
    } catch (const WeightsError& e) {
      set_error(make_error("WeightsError", text(e.path()), text(e.expected()), text(e.found()), text(e.file())));
    } catch (const DeserializationError& e) {
      set_error(make_error(class_of(e), text(e.path()), text(e.expected()), text(e.found())));
    } catch (const std::system_error& e) {
      set_os_error(e);
    }
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void set_python_error(const std::exception_ptr& exception) noexcept { set_translated(exception, translate); }

void translate_runtime_errors() { nb::register_exception_translator(translate); }

}  // namespace jaxexp::bindings

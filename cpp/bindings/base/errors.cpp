#include "bindings/base/errors.h"

#include "wire/artifact/layout.h"

namespace jaxexp::bindings {
namespace {

constexpr const char* serialization_errors[] = {"SerializationError", "SerializationTypeError",
                                                "SerializationKeyError"};
static_assert(static_cast<std::size_t>(Also::key_error) + 1 == std::size(serialization_errors));

/// nanobind calls this for every C++ exception that reaches Python; those of others have to pass through.
void translate(const std::exception_ptr& exception, void*) {
  try {
    try {
      std::rethrow_exception(exception);
    } catch (const wire::TensorsError& e) {
      set_error(make_error("WeightsError", text(e.path), text(e.expected), text(e.found)));
    } catch (const wire::Error& e) {
      const char* const name = e.path.ends_with("mlir_module_serialized") ? "ModuleError" : "DeserializationError";
      set_error(make_error(name, text(e.path), text(e.expected), text(e.found)));
    } catch (const NotSerializable& e) {
      set_error(make_error(serialization_errors[static_cast<int>(e.also)], text(e.message)));
    } catch (const wire::TooLarge& e) {
      set_error(make_error("SerializationError", text(e.what())));
    } catch (const std::system_error& e) {
      set_os_error(e);
    }
  } catch (nb::python_error& e) {
    e.restore();
  }
}

}  // namespace

void translate_errors() { nb::register_exception_translator(translate); }

void raise_not_readable(nb::python_error& cause, const wire::Path& where, const char* expected) {
  const nb::object own = nb::module_::import_("jaxexp._errors").attr("ExportError");
  if (!cause.matches(PyExc_Exception) || cause.matches(PyExc_MemoryError) || cause.matches(own)) throw;
  nb::object value = nb::borrow(cause.value());
  const nb::object found = owned(PyUnicode_FromFormat("%s: %S", nb::type_name(value.type()).c_str(), value.ptr()));
  const nb::object error = make_error("DeserializationError", text(where.str()), text(expected), found);
  PyException_SetCause(error.ptr(), value.release().ptr());
  set_error(error);
  throw nb::python_error();
}

void raise_at(nb::python_error& cause, const wire::Path& where) {
  if (cause.matches(nb::module_::import_("jaxexp._errors").attr("DeserializationError"))) {
    const nb::object error = nb::borrow(cause.value());
    if (nb::cast<std::string_view>(error.attr("path")).empty()) {
      error.attr("path") = text(where.str());
      error.attr("args") = nb::make_tuple(error.attr("path"), error.attr("expected"), error.attr("found"));
    }
  }
  throw;
}

nb::object python_exception(const std::exception_ptr& exception) {
  try {
    set_translated(exception, translate);
    throw nb::python_error();
  } catch (nb::python_error& error) {
    return nb::borrow(error.value());
  }
}

nb::object export_type_error(const std::string& message) { return make_error("ExportTypeError", text(message)); }

std::string describe(nb::handle object) {
  const std::string type = nb::type_name(object.type()).c_str();
  const nb::object repr = nb::steal(PyObject_Repr(object.ptr()));
  const char* text = repr.is_valid() ? PyUnicode_AsUTF8(repr.ptr()) : nullptr;
  if (!text) return PyErr_Clear(), "a value of type " + type;
  return wire::shortened(text) + " (" + type + ")";
}

}  // namespace jaxexp::bindings

// What the encoders of all types share: text and numbers out of Python objects, and errors that say where.
#include "bindings/codec/encoder.h"

#include "bindings/base/errors.h"

namespace jaxexp::bindings {

std::string_view Encoder::utf8(nb::handle text, const char* what) const {
  if (!PyUnicode_Check(text.ptr()))
    refuse(std::string(what) + " has to be a string, found " + describe(text), Also::type_error);
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw nb::python_error();
    PyErr_Clear();
    refuse(std::string(what) + " has to be a string of Unicode characters, found lone surrogates");
  }
  return {data, static_cast<std::size_t>(size)};
}

std::uint64_t Encoder::integer(nb::handle number, std::uint64_t least, std::uint64_t most, const char* what) const {
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    refuse(std::string(what) + " has to be an integer, found " + describe(number), Also::type_error);
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < static_cast<long long>(least) || value > static_cast<long long>(most))
    refuse(std::string(what) + " has to be a number from " + std::to_string(least) + " to " + std::to_string(most) +
           ", the most that the format holds, found " + describe(number));
  return static_cast<std::uint64_t>(value);
}

void Encoder::refuse(const std::string& what, Also also) const { throw NotSerializable(where_, what, also); }

}  // namespace jaxexp::bindings

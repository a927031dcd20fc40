// Arrays on devices, which Python reads into memory of its own.
#include "bindings/base/owned.h"
#include "bindings/base/text.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"

namespace jaxexp::bindings {
namespace {

void copy_into(const Array& array, nb::handle target) {
  const View view(target, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  if (view.size_bytes() != array.size_bytes())
    throw RunError(RunError::Reason::argument, array.str() + " takes " + std::to_string(array.size_bytes()) +
                                                   " bytes, and not " + std::to_string(view.size_bytes()));
  const nb::gil_scoped_release release;
  array.copy_to(view.data());
}

}  // namespace

void define_runtime_array(nb::module_& m) {
  nb::class_<Array>(m, "Array", "Numbers on devices, which may still be computed.")
      .def_prop_ro("dtype", &Array::dtype)
      .def_prop_ro(
          "shape",
          [](const Array& array) {
            return new_tuple(array.shape().size(), [&](std::size_t i) { return nb::cast(array.shape()[i]); });
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def("wait", &Array::wait, nb::call_guard<nb::gil_scoped_release>(), "Waits until the numbers are computed.")
      .def("copy_into", &copy_into, "target"_a, nb::sig("def copy_into(self, target: typing_extensions.Buffer) -> None"),
           "Waits for the numbers, and copies them into a buffer of their size.")
      .def("__str__", [](const Array& array) { return text(array.str()); });
}

}  // namespace jaxexp::bindings

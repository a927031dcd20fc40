// The check of arguments.
#include "bindings/base/define.h"

#include "bindings/call/arguments.h"

namespace jaxexp::bindings {

void define_call(nb::module_& m) {
  nb::class_<Arguments>(m, "Arguments", "Knows the arguments that the dispatch of a jitted function reads right.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::handle, nb::dict>(), "array"_a, "ndarray"_a, "number"_a,
           "registry"_a, "registered"_a,
           nb::sig("def __init__(self, array: type, ndarray: type, number: type, registry: object, "
                   "registered: dict[type, typing.Any]) -> None"))
      .def(
          "are_plain", &Arguments::are_plain,
          nb::sig("def are_plain(self, args: tuple[object, ...], kwargs: dict[str, object], /) -> bool"),
          "Whether every leaf is a device array, a number of Python or NumPy, or a NumPy array in the machine's byte order.");
}

}  // namespace jaxexp::bindings

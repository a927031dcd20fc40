// jaxexp._native: a table of contents.
#include <nanobind/nanobind.h>

#include "bindings/base/define.h"
#include "bindings/base/errors.h"
#include "bindings/base/file.h"
#include "bindings/base/jax_refs.h"
#include "bindings/base/room.h"

NB_MODULE(_native, m) {
  using namespace jaxexp::bindings;
  using namespace nb::literals;

  m.doc() = "The codec of serialized Exported. Importing it imports no JAX: `bind` hands over what it needs.";
#ifdef NDEBUG
  // What still lives at exit is mostly kept by JAX's own registries. Users of a program need no warning about it.
  nb::set_leak_warnings(false);
#endif
  translate_errors();
  unbind_with(m);

  m.def("bind", &bind, "jax"_a, nb::sig("def bind(jax: object) -> None"),
        "Keeps references to JAX's types, enum members and functions, which are attributes of `jax`.");
  define_room(m);
  define_file(m);
  define_artifact(m);
  define_many(m);
  define_bytecode(m);
  define_archive(m);
  define_call(m);
  define_compiled(m);
  define_tensors(m);
}

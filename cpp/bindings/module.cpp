// jaxexp._native: a table of contents.
#include "bindings/base/define.h"
#include "bindings/base/errors.h"
#include "bindings/base/file.h"
#include "bindings/base/jax_refs.h"

NB_MODULE(_native, m) {
  using namespace jaxexp::bindings;

  m.doc() = "The codec of serialized Exported. Importing it imports no JAX: `bind` hands over what it needs.";
#ifdef NDEBUG
  // What still lives at exit is mostly kept by JAX's own registries. Users of a program need no warning about it.
  nb::set_leak_warnings(false);
#endif
  translate_errors();
  unbind_with(m);

  m.def("bind", &bind, "jax"_a,
        "Keeps references to JAX's types, enum members and functions, which are attributes of `jax`.");
  define_file(m);
  define_encoding(m);
  define_artifact(m);
  define_apart(m);
  define_read_many(m);
  define_verify_files(m);
  define_bytecode(m);
  define_archive_member(m);
  define_archive_index(m);
  define_archive_end(m);
  define_archive_records(m);
  define_archive_verification(m);
  define_call(m);
  define_compiled(m);
  define_tensors(m);
}

// The class of artifacts that are read, and what makes functions of them.
#include "bindings/base/define.h"

#include <utility>

#include "bindings/artifact/artifact.h"
#include "bindings/artifact/noted.h"
#include "bindings/base/buffer.h"
#include "bindings/base/objects.h"
#include "wire/base/dtype.h"

namespace jaxexp::bindings {

// Like the constructor of Exported for functions that were loaded: nothing is checked or copied again.

namespace {

nb::object interned(const char* name) { return owned(PyUnicode_InternFromString(name)); }

/// Whatever the class says of setting attributes: it is frozen.
void set(const nb::object& object, const nb::object& name, const nb::object& value) {
  if (PyObject_GenericSetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) throw nb::python_error();
}

}  // namespace

Functions::Functions(nb::handle makes)
    : exported_(makes.attr("Exported")),
      loaded_vjp_(makes.attr("LoadedVjp")),
      metadata_from_json_(makes.attr("metadata_from_json")),
      artifact_name_(interned("_artifact")),
      get_vjp_name_(interned("_get_vjp")),
      nothing_(nb::make_tuple()) {}

nb::object Functions::function(Artifact artifact) const {
  const bool has_vjp = artifact.has_vjp();
  if (const auto texts = artifact.metadata()) artifact.note(metadata_from_json_(*texts));
  const nb::object held = nb::cast(std::move(artifact));
  auto* const type = reinterpret_cast<PyTypeObject*>(exported_.ptr());
  const nb::object made = owned(PyBaseObject_Type.tp_new(type, nothing_.ptr(), nullptr));
  set(made, artifact_name_, held);
  set(made, get_vjp_name_, has_vjp ? loaded_vjp_(held) : nb::none());
  return made;
}

nb::object Functions::read(nb::handle buffer) const {
  Artifact artifact(buffer);
  artifact.prepare();
  return function(std::move(artifact));
}

namespace {

void define_class(nb::module_& m) {
  nb::class_<Artifact>(m, "Artifact", "A serialized Exported in a buffer that is verified, and kept while this lives.")
      .def(
          nb::init<nb::handle, nb::handle, bool>(), "buffer"_a.none(), "modules"_a = nb::tuple(), nb::kw_only(),
          "in_place"_a = false,
          nb::sig("def __init__(self, buffer: typing_extensions.Buffer, "
                  "modules: collections.abc.Sequence[typing_extensions.Buffer] = (), *, in_place: bool = False) "
                  "-> None"),
          "Where there are modules, the buffer is what `cut` left of an artifact: one for each function. A buffer that "
          "somebody may change is copied. `in_place` uses read-only ones where they are: then the caller sees to it "
          "that nobody changes them.")
      .def("decode", &Artifact::decode,
           "The fields of the Exported, except its module. The first call makes them, and all return the same objects.")
      .def("complete", &Artifact::complete, "attributes"_a,
           "Adds what `decode` returns, except where there is something.")
      .def(
          "said", [](const Artifact& artifact) { return artifact.said().for_python(); },
          nb::sig("def said(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, object, object] | None"),
          "What it says of the signature beside the fields: indices of weak arguments and results, and both trees with "
          "classes by their names; each None if there is nothing to say.")
      .def(
          "prepare", [](const Artifact& artifact) { artifact.prepare(); },
          "Decodes it now where that might fail later: where Python has the last word on something in it, or its "
          "buffer may change.")
      .def_prop_ro("is_decoded", &Artifact::is_decoded, "Whether its fields are made.")
      .def("module", &Artifact::module, "The bytes of the StableHLO module: a read-only view into the buffer.")
      .def(
          "copied_module", [](const Artifact& artifact) { return copy_of(artifact.module_bytes()); },
          "The same bytes, copied.")
      .def("unchecked_module", &Artifact::unchecked_module, "The same bytes, without a comparison with their digest.")
      .def_prop_ro("module_size", &Artifact::module_size, "How many bytes it has; it is not read.")
      .def_prop_ro(
          "size", &Artifact::size,
          "How many bytes it has, its modules included; all of the buffer where no trailer says where it ends.")
      .def("vjp", &Artifact::vjp, "The VJP that was serialized with it.")
      .def_prop_ro("serialization_version", &Artifact::serialization_version)
      .def_prop_ro("jax_version", &Artifact::jax_version)
      .def_prop_ro("writer", &Artifact::writer, "The releases of JAX that write such an artifact.")
      .def_prop_ro("fun_name", &Artifact::fun_name)
      .def_prop_ro("origin", &Artifact::origin,
                   "Of a VJP, the name of the function at the head of the chain, and the order of the VJP.")
      .def_prop_ro("nr_devices", &Artifact::nr_devices)
      .def_prop_ro("platforms", &Artifact::platforms)
      .def_prop_ro("counts", &Artifact::counts, "How many arguments and results the function has.")
      .def_prop_ro("runs_anywhere", &Artifact::runs_anywhere, "Whether the check of the platform was disabled.")
      .def_prop_ro("module_place", &Artifact::module_place,
                   "The address and the size of its module, which tell whether two functions share one.")
      .def("facts", &Artifact::facts, "library_node"_a = nb::none(),
           nb::sig("def facts(self, library_node: collections.abc.Callable[[bytes, str | None], tuple[str | None, "
                   "tuple[str, ...]] | None] | None = None) -> dict[str, object]"),
           "What decides who can read it: kinds by their numbers, device counts, how values are listed.")
      .def("trailer", &Artifact::trailer,
           "What its trailer says of all functions, except the user's metadata; None where it has no trailer.")
      .def("digest", &Artifact::digest, "Of all its bytes, as they were read; for artifacts without a trailer.")
      .def("modules", &Artifact::modules, "Offset, size and digest of its module, of its VJP's, and so on.")
      .def("metadata", &Artifact::metadata, "The user's metadata as JSON texts; None where there is none.")
      .def("texts", &Artifact::texts_for_python,
           "What only Python verifies: metadata, and of custom nodes where they are, name, data and count of children.")
      .def_prop_rw("noted", &Artifact::noted, &Artifact::note, nb::for_setter(nb::arg("values").none()),
                   nb::for_getter(nb::sig("def noted(self) -> collections.abc.Mapping[str, typing.Any] | None")),
                   nb::for_setter(
                       nb::sig("def noted(self, values: collections.abc.Mapping[str, typing.Any] | None, /) -> None")),
                   "The same as values, which whoever makes a function of the artifact sets.")
      .def("has_cases_or_sizes", &Artifact::has_cases_or_sizes, "Or dimensions that may be padded.")
      .def("sizes", &Artifact::sizes, nb::sig("def sizes(self) -> tuple[dict[str, int], ...]"), "To compile it for.")
      .def("padded", &Artifact::padded, nb::sig("def padded(self) -> tuple[str, ...]"), "That may be padded.")
      .def("weights", &Artifact::weights,
           "Files (name, size, content), tensors (name, index of the file, size, digest) that are its first arguments, "
           "and other names of these (name, index of the tensor); None where there are none.")
      .def(
          "cases", &Artifact::cases,
          "Cases (name, order of the VJP, arguments, results, index of the recording, trace), recordings (lists of "
          "pairs), files and tensors as `weights` has them; None where there are none. An array is (number of the "
          "dtype, shape, bytes, index of a tensor, (distribution, seed, first, second), (relative, absolute)), each None "
          "that is not there.")
      .def("describe", &Artifact::describe, "library_node"_a = nb::none(),
           nb::sig("def describe(self, library_node: collections.abc.Callable[[bytes, str | None], tuple[str | None, "
                   "tuple[str, ...]] | None] | None = None) -> dict[str, typing.Any]"),
           "What it says, as plain Python objects; needs no `bind`. Its module is not compared with a digest.");
}

void define_functions(nb::module_& m) {
  nb::class_<Functions>(m, "Functions", "What makes functions of artifacts.")
      .def(nb::init<nb::handle>(), "makes"_a)
      .def("function", &Functions::function, "artifact"_a,
           nb::sig("def function(self, artifact: Artifact) -> typing.Any"), "That of an artifact that is prepared.")
      .def("read", &Functions::read, "buffer"_a.none(),
           nb::sig("def read(self, buffer: typing_extensions.Buffer) -> typing.Any"),
           "That of the artifact in a buffer, as `Artifact` opens it.");
}

}  // namespace

void define_artifact(nb::module_& m) {
  define_class(m);
  define_functions(m);
  m.def("dtype_name", &wire::dtype_name, "kind"_a, "What JAX calls a dtype, by its number in an artifact.");
}

}  // namespace jaxexp::bindings

// The class of artifacts that are read, and the functions that write them.
#include "bindings/base/define.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "bindings/artifact/apart.h"
#include "bindings/artifact/artifact.h"
#include "bindings/artifact/encode.h"
#include "bindings/artifact/functions.h"
#include "bindings/artifact/weights.h"
#include "bindings/codec/form.h"
#include "wire/artifact/trailer.h"
#include "wire/base/digest.h"
#include "wire/exported/dtype_name.h"

namespace jaxexp::bindings {
namespace {

void define_encoding(nb::module_& m) {
  nb::class_<Form>(m, "Form", "Which slots an artifact fills; by default, those that today's readers know.")
      .def(nb::init<>())
      .def(nb::init<std::uint16_t, bool, bool>(), "serialization_version"_a, "short_device_count"_a, "hlo_shardings"_a);
  nb::class_<wire::Notes>(m, "Notes", "What a trailer says that is not told from the functions.")
      .def(
          "__init__",
          [](wire::Notes* notes, std::string writer, const std::map<std::string, std::string>& metadata,
             const nb::object& weights) {
            std::optional<wire::Weights> beside;
            if (!weights.is_none()) beside = to_weights(weights);
            new (notes) wire::Notes{std::move(writer), {metadata.begin(), metadata.end()}, std::move(beside)};
          },
          "writer"_a, "metadata"_a, "weights"_a = nb::none(),
          nb::sig("def __init__(self, writer: str, metadata: dict[str, str], weights: tuple["
                  "collections.abc.Sequence[tuple[str, int, bytes]], "
                  "collections.abc.Sequence[tuple[str, int, int, bytes]], "
                  "collections.abc.Sequence[tuple[str, int]]] | None = None) -> None"),
          "Weights are files (name, size, content), tensors (name, index of the file, size, digest), and other names of "
          "tensors (name, index of the tensor).");
  m.def("encode", &encode, "chain"_a, "jax_version"_a, "form"_a, "notes"_a.none(),
        nb::sig("def encode(chain: collections.abc.Sequence[object], jax_version: str, form: Form, "
                "notes: Notes | None) -> bytearray"),
        "The bytes of a function and its VJPs, in this order; with a trailer where there are notes.");
  nb::class_<EncodedParts>(m, "EncodedParts",
                           "What `encode` returns, in pieces; those of the modules are views, not copies.")
      .def(nb::init<const nb::sequence&, std::string_view, const Form&, const wire::Notes*>(), "chain"_a,
           "jax_version"_a, "form"_a, "notes"_a.none(),
           nb::sig("def __init__(self, chain: collections.abc.Sequence[object], jax_version: str, form: Form, "
                   "notes: Notes | None) -> None"))
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> EncodedParts"))
      .def("__next__", &EncodedParts::next, nb::sig("def __next__(self) -> bytes | memoryview"));
}

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
      .def(
          "decode", &Artifact::decode, nb::sig("def decode(self) -> dict[str, object]"),
          "The fields of the Exported, except its module. The first call makes them; they are the same objects each time.")
      .def("complete", &Artifact::complete, "attributes"_a,
           nb::sig("def complete(self, attributes: dict[str, typing.Any]) -> None"),
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
      .def("module", &Artifact::module, nb::sig("def module(self) -> memoryview"),
           "The bytes of the StableHLO module: a read-only view into the buffer.")
      .def("unchecked_module", &Artifact::unchecked_module, nb::sig("def unchecked_module(self) -> memoryview"),
           "The same bytes, without a comparison with their digest.")
      .def_prop_ro("module_size", &Artifact::module_size, "How many bytes it has; it is not read.")
      .def_prop_ro(
          "size", &Artifact::size,
          "How many bytes it has, its modules included; all of the buffer where no trailer says where it ends.")
      .def("vjp", &Artifact::vjp, "The VJP that was serialized with it.")
      .def_prop_ro("serialization_version", &Artifact::serialization_version)
      .def_prop_ro("jax_version", &Artifact::jax_version, nb::sig("def jax_version(self) -> str | None"))
      .def_prop_ro("writer", &Artifact::writer, "The releases of JAX that write such an artifact.")
      .def_prop_ro("fun_name", &Artifact::fun_name)
      .def_prop_ro("origin", &Artifact::origin, nb::sig("def origin(self) -> tuple[str, int] | None"),
                   "Of a VJP, the name of the function at the head of the chain, and the order of the VJP.")
      .def_prop_ro("nr_devices", &Artifact::nr_devices)
      .def_prop_ro("platforms", &Artifact::platforms, nb::sig("def platforms(self) -> tuple[str, ...]"))
      .def_prop_ro("counts", &Artifact::counts, nb::sig("def counts(self) -> tuple[int, int]"),
                   "How many arguments and results the function has.")
      .def_prop_ro("runs_anywhere", &Artifact::runs_anywhere, "Whether the check of the platform was disabled.")
      .def_prop_ro("module_place", &Artifact::module_place, nb::sig("def module_place(self) -> tuple[int, int]"),
                   "The address and the size of its module, which tell whether two functions share one.")
      .def("facts", &Artifact::facts, "library_node"_a = nb::none(),
           nb::sig("def facts(self, library_node: collections.abc.Callable[[bytes], tuple[str, tuple[str, ...]] | "
                   "None] | None = None) -> dict[str, object]"),
           "What decides who can read it: kinds by their numbers, device counts, how values are listed.")
      .def("trailer", &Artifact::trailer, nb::sig("def trailer(self) -> dict[str, object] | None"),
           "What its trailer says of all functions, except the user's metadata; None where it has no trailer.")
      .def("digest", &Artifact::digest, nb::sig("def digest(self) -> bytes"),
           "Of all its bytes, as they were read; for artifacts without a trailer.")
      .def("modules", &Artifact::modules, nb::sig("def modules(self) -> list[tuple[int, int, bytes]]"),
           "Offset, size and digest of its module, of its VJP's, and so on.")
      .def("metadata", &Artifact::metadata, nb::sig("def metadata(self) -> dict[str, str] | None"),
           "The user's metadata as JSON texts; None where there is none.")
      .def_prop_rw("noted", &Artifact::noted, &Artifact::note, nb::for_setter(nb::arg("values").none()),
                   nb::for_getter(nb::sig("def noted(self) -> collections.abc.Mapping[str, typing.Any] | None")),
                   nb::for_setter(
                       nb::sig("def noted(self, values: collections.abc.Mapping[str, typing.Any] | None, /) -> None")),
                   "The same as values, which whoever makes a function of the artifact sets.")
      .def("weights", &Artifact::weights,
           nb::sig("def weights(self) -> tuple[list[tuple[str, int, bytes]], list[tuple[str, int, int, bytes]], "
                   "list[tuple[str, int]]] | None"),
           "Files (name, size, content), tensors (name, index of the file, size, digest) that are its first arguments, "
           "and other names of these (name, index of the tensor); None where there are none.")
      .def("describe", &Artifact::describe, "library_node"_a = nb::none(),
           nb::sig("def describe(self, library_node: collections.abc.Callable[[bytes], tuple[str, tuple[str, ...]] | "
                   "None] | None = None) -> dict[str, typing.Any]"),
           "What it says, as plain Python objects; needs no `bind`. Its module is not compared with a digest.");
}

void define_apart(nb::module_& m) {
  m.def("cut", &cut, "artifact"_a.none(), nb::sig("def cut(artifact: typing_extensions.Buffer) -> bytes"),
        "An artifact without its modules' bytes, for who keeps those elsewhere; it has to have a trailer.");
  m.def("join", &join, "image"_a.none(), "modules"_a,
        nb::sig("def join(image: typing_extensions.Buffer, "
                "modules: collections.abc.Sequence[typing_extensions.Buffer]) -> bytearray"),
        "The artifact that `cut` made the image from, byte for byte; its modules are compared with their digests.");
  m.def("digest", &digest, "buffer"_a.none(), nb::sig("def digest(buffer: typing_extensions.Buffer) -> bytes"),
        "XXH3 of 128 bits, in its canonical byte order, as trailers have it.");
  m.def("equal_bytes", &equal_bytes, "one"_a.none(), "other"_a.none(),
        nb::sig("def equal_bytes(one: typing_extensions.Buffer, other: typing_extensions.Buffer) -> bool"),
        "Whether two buffers have the same bytes. Python's memoryviews compare one byte after the other.");
  nb::class_<wire::Digester>(m, "Digester", "The same digest, of bytes that come in parts, from one thread.")
      .def(nb::init<>())
      .def("update", &update, "part"_a.none(), nb::sig("def update(self, part: typing_extensions.Buffer) -> None"))
      .def("digest", &digest_of_parts, nb::sig("def digest(self) -> bytes"), "Of all parts so far.");
}

void define_functions(nb::module_& m) {
  nb::class_<Functions>(m, "Functions", "What makes functions of artifacts.")
      .def(nb::init<nb::handle>(), "makes"_a, nb::sig("def __init__(self, makes: object) -> None"))
      .def("function", &Functions::function, "artifact"_a,
           nb::sig("def function(self, artifact: Artifact) -> typing.Any"), "That of an artifact that is prepared.")
      .def("read", &Functions::read, "buffer"_a.none(),
           nb::sig("def read(self, buffer: typing_extensions.Buffer) -> typing.Any"),
           "That of the artifact in a buffer, as `Artifact` opens it.");
}

}  // namespace

void define_artifact(nb::module_& m) {
  define_encoding(m);
  define_class(m);
  define_functions(m);
  define_apart(m);
  m.def("dtype_name", &wire::dtype_name, "kind"_a, "What JAX calls a dtype, by its number in an artifact.");
}

}  // namespace jaxexp::bindings

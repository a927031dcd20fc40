// Members, their places and what they say of a function.
#include "bindings/archive/member.h"

#include <optional>

#include "bindings/base/define.h"
#include "bindings/base/owned.h"
#include "bindings/base/text.h"

namespace jaxexp::bindings {

using wire::Member, wire::Text;

namespace {

Text text_of(const nb::str& text) {
  Py_ssize_t size;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!bytes) throw nb::python_error();
  return std::string(bytes, static_cast<std::size_t>(size));
}

std::optional<Text> text_of(const std::optional<nb::str>& text) {
  return text ? std::optional(text_of(*text)) : std::nullopt;
}

void define_place(nb::module_& m) {
  using Place = Member::Place;
  nb::class_<Place>(m, "MemberPlace", "Where the bytes of a member are in an archive's file.")
      .def(nb::init<std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t, bool, bool>(), "position"_a, "size"_a,
           "crc32"_a, "header"_a, "shared"_a = false, "apart"_a = false)
      .def_ro("position", &Place::position)
      .def_ro("size", &Place::size)
      .def_ro("crc32", &Place::crc32)
      .def_ro("header", &Place::header, "The size of the ZIP header in front of them.")
      .def_ro("shared", &Place::shared, "Whether they are another member's, which has the same content.")
      .def_ro("apart", &Place::apart, "Whether they are an image, whose modules are elsewhere in the file.")
      .def(
          "as_shared",
          [](const Place& place) {
            Place shared = place;
            shared.shared = true;
            return shared;
          },
          "The same bytes, for a member that does not own them.");
}

void define_summary(nb::module_& m) {
  using Summary = Member::Summary;
  nb::class_<Summary>(m, "MemberSummary", "What an index says of a function; lists have a line for each element.")
      .def(
          "__init__",
          [](Summary* summary, const nb::str& fun_name, const std::optional<nb::str>& jax_version,
             const nb::str& writer, const nb::str& platforms, std::uint32_t nr_devices, const nb::str& arguments,
             std::uint32_t argument_count, const nb::str& results, std::uint32_t result_count) {
            new (summary)
                Summary{text_of(fun_name),  text_of(jax_version), text_of(writer),  text_of(platforms), nr_devices,
                        text_of(arguments), argument_count,       text_of(results), result_count};
          },
          nb::kw_only(), "fun_name"_a, "jax_version"_a.none(), "writer"_a, "platforms"_a, "nr_devices"_a, "arguments"_a,
          "argument_count"_a, "results"_a, "result_count"_a)
      .def_ro("fun_name", &Summary::fun_name)
      .def_ro("jax_version", &Summary::jax_version)
      .def_ro("writer", &Summary::writer)
      .def_ro("platforms", &Summary::platforms)
      .def_ro("nr_devices", &Summary::nr_devices)
      .def_ro("arguments", &Summary::arguments)
      .def_ro("argument_count", &Summary::argument_count)
      .def_ro("results", &Summary::results)
      .def_ro("result_count", &Summary::result_count);
}

}  // namespace

nb::bytes last_bytes(std::vector<wire::ZipMember> files, const Member::Place& index, std::uint64_t position,
                     const nb::bytes& comment) {
  files.push_back({std::string(wire::index_name), index.size, index.crc32, index.position - index.header});
  return to_bytes(wire::zip_end(files, position, {comment.c_str(), comment.size()}));
}

void define_archive_member(nb::module_& m) {
  define_place(m);
  define_summary(m);
  nb::class_<Member>(m, "Member", "What the index of an archive says of a member.")
      .def(
          "__init__",
          [](Member* member, const Member::Summary& summary, const wire::Digest& digest, std::uint32_t size,
             const std::optional<nb::str>& metadata,
             bool own_metadata) { new (member) Member{summary, digest, size, text_of(metadata), own_metadata}; },
          nb::kw_only(), "summary"_a, "digest"_a, "size"_a, "metadata"_a.none(), "own_metadata"_a)
      .def(
          "at",
          [](const Member& member, const Member::Place& place, const nb::typed<nb::iterable, Member::Module>& modules) {
            Member stored = member;
            stored.place = place;
            stored.modules = to_vector<Member::Module>(modules);
            return stored;
          },
          "place"_a, "modules"_a, "The same, with its bytes and its modules in other places.")
      .def_prop_ro("summary", [](const Member& member) { return member.summary; })
      .def_ro("digest", &Member::digest, "Of the artifact with its modules.")
      .def_ro("size", &Member::size, "Likewise.")
      .def_ro("metadata", &Member::metadata, "The user's, as JSON; None where there is none.")
      .def_ro("own_metadata", &Member::own_metadata, "Whether it was given to the archive, not to the artifact.")
      .def_prop_ro("place", [](const Member& member) { return member.place; })
      .def_ro("modules", &Member::modules, "Position, size and digest of its module, of its VJP's, and so on.");
}

}  // namespace jaxexp::bindings

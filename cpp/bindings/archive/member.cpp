// Members, their places and what they say of a function.
#include "bindings/archive/member.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/base/digest.h"
#include "bindings/base/owned.h"

namespace jaxexp::bindings {
namespace {

using wire::Member;

std::vector<Member::Module> to_modules(nb::handle modules) {
  std::vector<Member::Module> converted;
  for (nb::handle module : modules)
    converted.push_back({nb::cast<std::uint64_t>(module[0]), nb::cast<std::uint32_t>(module[1]), to_digest(module[2])});
  return converted;
}

std::optional<wire::Text> to_text(std::optional<std::string> text) {
  return text ? std::optional<wire::Text>(std::move(*text)) : std::nullopt;
}

std::optional<std::string> to_string(const std::optional<wire::Text>& text) {
  return text ? std::optional(text->str()) : std::nullopt;
}

nb::tuple modules_of(const Member& member) {
  nb::list modules = new_list();
  for (const auto& [position, size, digest] : member.modules)
    modules.append(nb::make_tuple(position, size, to_bytes(digest)));
  return nb::tuple(modules);
}

void define_place(nb::module_& m) {
  using Place = Member::Place;
  nb::class_<Place>(m, "MemberPlace", "Where the bytes of a member are in an archive's file.")
      .def(
          "__init__",
          [](Place* place, std::uint64_t position, std::uint32_t size, std::uint32_t crc32, std::uint16_t header,
             bool shared, bool apart) { new (place) Place{position, size, crc32, header, shared, apart}; },
          "position"_a, "size"_a, "crc32"_a, "header"_a, "shared"_a = false, "apart"_a = false)
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
          [](Summary* summary, std::string fun_name, std::optional<std::string> jax_version, std::string writer,
             std::string platforms, std::uint32_t nr_devices, std::string arguments, std::uint32_t argument_count,
             std::string results, std::uint32_t result_count) {
            new (summary) Summary{std::move(fun_name), to_text(std::move(jax_version)),
                                  std::move(writer),   std::move(platforms),
                                  nr_devices,          std::move(arguments),
                                  argument_count,      std::move(results),
                                  result_count};
          },
          nb::kw_only(), "fun_name"_a, "jax_version"_a.none(), "writer"_a, "platforms"_a, "nr_devices"_a, "arguments"_a,
          "argument_count"_a, "results"_a, "result_count"_a)
      .def_prop_ro("fun_name", [](const Summary& summary) { return summary.fun_name.str(); })
      .def_prop_ro("jax_version", [](const Summary& summary) { return to_string(summary.jax_version); })
      .def_prop_ro("writer", [](const Summary& summary) { return summary.writer.str(); })
      .def_prop_ro("platforms", [](const Summary& summary) { return summary.platforms.str(); })
      .def_ro("nr_devices", &Summary::nr_devices)
      .def_prop_ro("arguments", [](const Summary& summary) { return summary.arguments.str(); })
      .def_ro("argument_count", &Summary::argument_count)
      .def_prop_ro("results", [](const Summary& summary) { return summary.results.str(); })
      .def_ro("result_count", &Summary::result_count);
}

}  // namespace

nb::bytes last_bytes(std::vector<wire::ZipMember> files, const Member::Place& index, std::uint64_t position,
                     const nb::bytes& comment) {
  files.push_back({std::string(wire::index_name), index.size, index.crc32, index.position - index.header});
  const std::string bytes = wire::zip_end(files, position, {comment.c_str(), comment.size()});
  return nb::bytes(bytes.data(), bytes.size());
}

void define_member(nb::module_& m) {
  define_place(m);
  define_summary(m);
  nb::class_<Member>(m, "Member", "What the index of an archive says of a member.")
      .def(
          "__init__",
          [](Member* member, Member::Summary summary, nb::bytes digest, std::uint32_t size,
             std::optional<std::string> metadata, bool own_metadata) {
            new (member)
                Member{std::move(summary), to_digest(digest), size, to_text(std::move(metadata)), own_metadata};
          },
          nb::kw_only(), "summary"_a, "digest"_a, "size"_a, "metadata"_a.none(), "own_metadata"_a)
      .def(
          "at",
          [](const Member& member, const Member::Place& place, nb::handle modules) {
            Member stored = member;
            stored.place = place;
            stored.modules = to_modules(modules);
            return stored;
          },
          "place"_a, "modules"_a,
          nb::sig("def at(self, place: MemberPlace, "
                  "modules: collections.abc.Iterable[tuple[int, int, bytes]]) -> Member"),
          "The same, with its bytes and its modules in other places.")
      .def_prop_ro("summary", [](const Member& member) { return member.summary; })
      .def_prop_ro(
          "digest", [](const Member& member) { return to_bytes(member.digest); }, "Of the artifact with its modules.")
      .def_ro("size", &Member::size, "Likewise.")
      .def_prop_ro(
          "metadata", [](const Member& member) { return to_string(member.metadata); },
          "The user's, as JSON; None where there is none.")
      .def_ro("own_metadata", &Member::own_metadata, "Whether it was given to the archive, not to the artifact.")
      .def_prop_ro("place", [](const Member& member) { return member.place; })
      .def_prop_ro("modules", &modules_of, nb::sig("def modules(self) -> tuple[tuple[int, int, bytes], ...]"),
                   "Position, size and digest of its module, of its VJP's, and so on.");
}

}  // namespace jaxexp::bindings

// The end of an archive has a constant size.
#include "wire/archive/end.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include "bindings/base/buffer.h"
#include "bindings/base/define.h"
#include "bindings/base/text.h"
#include "wire/archive/find_end.h"
#include "wire/archive/section.h"
#include "wire/archive/weights.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {
namespace {

using ReadAt = nb::typed<nb::callable, nb::bytes(int, int)>;

std::tuple<std::uint64_t, wire::ArchiveEnd, std::uint64_t, bool> find_end(std::uint64_t size, const ReadAt& read,
                                                                          bool may_walk) {
  nb::object held;
  std::optional<Buffer> buffer;
  const auto [end, said, rest, section] = wire::find_end(
      size,
      [&](std::uint64_t position, std::size_t count) {
        held = read(position, count);
        const auto bytes = buffer.emplace(held).bytes();
        if (bytes.size() != count) throw nb::value_error("a range has to be as long as was asked for");
        return bytes;
      },
      may_walk);
  return {end, said, section, rest == wire::FoundEnd::Rest::unfinished};
}

}  // namespace

void define_archive_end(nb::module_& m) {
  using End = wire::ArchiveEnd;
  nb::class_<End>(m, "ArchiveEnd", "The last bytes of an archive, which lead to its index.")
      .def(nb::init<std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t, wire::Digest>(), "index_position"_a,
           "index_size"_a, "root_position"_a, "root_size"_a, "root_digest"_a)
      .def_static(
          "read", [](HasBuffer last) { return End::read(Buffer(last).bytes()); }, "last"_a,
          "What so many bytes say; None where they are not the end of an archive.")
      .def_ro("index_position", &End::index_position)
      .def_ro("index_size", &End::index_size)
      .def_ro("root_position", &End::root_position)
      .def_ro("root_size", &End::root_size)
      .def_ro("root_digest", &End::root_digest)
      .def("comment", [](const End& end) { return to_bytes(end.comment()); }, "The ZIP file's comment.");
  m.attr("ARCHIVE_END_SIZE") = End::size;
  m.attr("ARCHIVE_END_MAGIC") = to_bytes(End::magic);
  m.attr("ARCHIVE_SECTION_HEAD_SIZE") = wire::Section::most_head;
  m.attr("ARCHIVE_INDEX_NAME") = text(wire::index_name);
  m.def("archive_weights_name", &wire::weights_name, "number"_a,
        "The name in the ZIP file of a file of weights, by its number.");
  m.attr("ARCHIVE_APART_FOLDER") = text(wire::apart_folder);

  m.def(
      "find_archive_end", &find_end, "size"_a, "read"_a, "may_walk"_a,
      "Where the last complete archive in a file of this size ends, and what its last bytes say; where its last "
      "section begins; and whether what an unfinished append left follows it. `read` gives ranges, by position and size. "
      "Archives of earlier versions are walked through, or the end of the file is believed.");
  m.def(
      "archive_section_head",
      [](std::uint64_t position, std::uint64_t end, std::optional<HasBuffer> last) {
        const wire::Digest digest = last ? wire::digest(Buffer(*last).bytes()) : wire::Digest{};
        return to_bytes(wire::Section{position, end, digest}.head());
      },
      "position"_a, "end"_a = 0, "last"_a = nb::none(),
      "The first bytes of a section of an archive's file; without an end and the last bytes, of an unfinished one.");
  m.def(
      "zip_local_header",
      [](std::string_view name, std::uint64_t size, std::uint32_t crc32, std::uint64_t position) {
        return to_bytes(wire::zip_local_header(name, size, crc32, position));
      },
      "name"_a, "size"_a, "crc32"_a, "position"_a, "The header of a member of a ZIP file, at a position.");
}

}  // namespace jaxexp::bindings

// The end of an archive has a constant size.
#include "bindings/archive/end.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/archive/member.h"
#include "bindings/base/buffer.h"
#include "bindings/base/digest.h"
#include "wire/archive/end.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::bindings {

using namespace nb::literals;

void define_end(nb::module_& m) {
  using End = wire::ArchiveEnd;
  nb::class_<End>(m, "ArchiveEnd", "The last bytes of an archive, which lead to its index.")
      .def(
          "__init__",
          [](End* end, std::uint64_t index_position, std::uint32_t index_size, std::uint32_t root_position,
             std::uint32_t root_size, nb::bytes root_digest) {
            new (end) End{index_position, index_size, root_position, root_size, to_digest(root_digest)};
          },
          "index_position"_a, "index_size"_a, "root_position"_a, "root_size"_a, "root_digest"_a)
      .def_static(
          "read", [](nb::handle last) { return End::read(Buffer(last).bytes()); }, "last"_a,
          nb::sig("def read(last: typing_extensions.Buffer) -> ArchiveEnd | None"),
          "What so many bytes say; None where they are not the end of an archive.")
      .def_static(
          "is_resembled_by", [](nb::handle last) { return End::is_resembled_by(Buffer(last).bytes()); }, "last"_a,
          nb::sig("def is_resembled_by(last: typing_extensions.Buffer) -> bool"),
          "Whether they look like a damaged one.")
      .def_ro("index_position", &End::index_position)
      .def_ro("index_size", &End::index_size)
      .def_ro("root_position", &End::root_position)
      .def_ro("root_size", &End::root_size)
      .def_prop_ro("root_digest", [](const End& end) { return to_bytes(end.root_digest); })
      .def(
          "comment",
          [](const End& end) {
            const std::string text = end.comment();
            return nb::bytes(text.data(), text.size());
          },
          "The ZIP file's comment.");
  m.attr("ARCHIVE_END_SIZE") = End::size;
  m.attr("ARCHIVE_END_MAGIC") = nb::bytes(End::magic.data(), End::magic.size());
  m.attr("ARCHIVE_END_MAGIC_AT") = End::magic_at;
  m.attr("ARCHIVE_INDEX_NAME") = nb::str(wire::index_name.data(), wire::index_name.size());
  m.attr("ARCHIVE_APART_FOLDER") = nb::str(wire::apart_folder.data(), wire::apart_folder.size());

  m.def(
      "zip_local_header",
      [](std::string_view name, std::uint32_t size, std::uint32_t crc32, std::uint64_t position) {
        const std::string header = wire::zip_local_header(name, size, crc32, position);
        return nb::bytes(header.data(), header.size());
      },
      "name"_a, "size"_a, "crc32"_a, "position"_a, "The header of a member of a ZIP file, at a position.");
}

}  // namespace jaxexp::bindings

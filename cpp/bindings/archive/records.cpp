// Members by their names, by their contents and by their places.
#include "bindings/archive/records.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/archive/index_view.h"
#include "bindings/archive/member.h"
#include "bindings/base/digest.h"
#include "bindings/base/owned.h"
#include "wire/archive/records.h"

namespace jaxexp::bindings {
namespace {

using Records = wire::ArchiveRecords;

nb::list list(const std::vector<std::string>& names) {
  nb::list listed = new_list();
  for (const std::string& name : names) listed.append(nb::cast(name));
  return listed;
}

void define_changes(nb::class_<Records>& records) {
  records.def(nb::init<>())
      .def(
          "take", [](Records& records, const IndexView& view) { records.take(view.index()); }, "index"_a,
          "Adds the members of an archive that is there.")
      .def("__len__", [](const Records& records) { return records.members().size(); })
      .def(
          "names",
          [](const Records& records) {
            nb::list names = new_list();
            for (const auto& [name, record] : records.members()) names.append(nb::cast(name));
            return names;
          },
          nb::sig("def names(self) -> list[str]"))
      .def(
          "get",
          [](const Records& records, std::string_view name) -> nb::object {
            const auto found = records.members().find(name);
            return found == records.members().end() ? nb::none() : nb::cast(found->second);
          },
          "name"_a, nb::sig("def get(self, name: str) -> Member | None"))
      .def(
          "check_name", [](const Records& records, std::string_view name) { records.check_name(name); }, "name"_a,
          "Raises ValueError where a new member cannot have this name.")
      .def("put", &Records::put, "name"_a, "member"_a)
      .def_prop_ro(
          "weights_file_count", [](const Records& records) { return records.weights().files().size(); },
          "How many files of weights there are.")
      .def(
          "add_weights",
          [](Records& records, std::uint64_t position, std::uint64_t size, std::uint32_t crc32, std::uint16_t header,
             nb::handle tensors) {
            std::vector<wire::ArchiveWeights::Tensor> converted;
            for (nb::handle tensor : tensors)
              converted.push_back({to_digest(nb::object(tensor[0])), nb::cast<std::uint64_t>(tensor[1]),
                                   nb::cast<std::uint64_t>(tensor[2])});
            records.weights().add({position, size, crc32, header}, converted);
          },
          "position"_a, "size"_a, "crc32"_a, "header"_a, "tensors"_a,
          nb::sig("def add_weights(self, position: int, size: int, crc32: int, header: int, "
                  "tensors: collections.abc.Iterable[tuple[bytes, int, int]]) -> None"),
          "Adds a file of weights behind the others, with its tensors: digest, position and size of each.")
      .def(
          "remove",
          [](Records& records, std::string_view name) {
            if (!records.members().contains(name)) throw nb::key_error("no such member");
            records.remove(name);
          },
          "name"_a);
}

void define_searches(nb::class_<Records>& records) {
  records
      .def(
          "of_content",
          [](const Records& records, nb::bytes digest, std::uint32_t size) -> nb::object {
            const std::string* const name = records.of_content(to_digest(digest), size);
            return name ? nb::cast(*name) : nb::none();
          },
          "digest"_a, "size"_a, nb::sig("def of_content(self, digest: bytes, size: int) -> str | None"),
          "A member that owns bytes of this content.")
      .def(
          "module",
          [](const Records& records, nb::bytes digest, std::uint32_t size) -> nb::object {
            const auto* const module = records.module(to_digest(digest), size);
            return module ? nb::cast(module->position) : nb::none();
          },
          "digest"_a, "size"_a, nb::sig("def module(self, digest: bytes, size: int) -> int | None"),
          "Where a member has a module of this content.")
      .def(
          "tensor",
          [](const Records& records, nb::bytes digest) -> nb::object {
            const auto found = records.weights().find(to_digest(digest));
            return found ? nb::object(nb::make_tuple(found->position, found->size)) : nb::none();
          },
          "digest"_a, nb::sig("def tensor(self, digest: bytes) -> tuple[int, int] | None"),
          "Where the weights have a tensor of this content: position and size.")
      .def(
          "sharing", [](const Records& records, std::uint64_t position) { return list(records.sharing(position)); },
          "position"_a, nb::sig("def sharing(self, position: int) -> list[str]"),
          "The members that share another's bytes at a position.")
      .def(
          "using",
          [](const Records& records, std::uint64_t position, std::uint64_t size) {
            return list(records.using_modules(position, position + size));
          },
          "position"_a, "size"_a, nb::sig("def using(self, position: int, size: int) -> list[str]"),
          "The members whose modules are apart from them, within these bytes.");
}

void define_writing(nb::class_<Records>& records) {
  records
      .def(
          "last_bytes",
          [](const Records& records, const wire::Member::Place& index, std::uint64_t position, nb::bytes comment) {
            return last_bytes(records.files(), index, position, comment);
          },
          "index"_a, "position"_a, "comment"_a,
          nb::sig("def last_bytes(self, index: MemberPlace, position: int, comment: bytes) -> bytes"),
          "What stands behind the index, whose place is given, from a position on: the ZIP file's directory and end.")
      .def(
          "write",
          [](const Records& records, std::string_view writer, std::uint64_t end) {
            const wire::IndexBytes index = records.write(writer, end);
            return nb::make_tuple(nb::bytes(index.bytes.data(), index.bytes.size()), index.root_position,
                                  index.root_size, to_bytes(index.root_digest));
          },
          "writer"_a, "end"_a, nb::sig("def write(self, writer: str, end: int) -> tuple[bytes, int, int, bytes]"),
          "The bytes of the index; where its root is in them, its size and its digest.");
}

}  // namespace

void define_records(nb::module_& m) {
  nb::class_<Records> records(m, "ArchiveRecords", "What the index of an archive that is being written will say.");
  define_changes(records);
  define_searches(records);
  define_writing(records);
}

}  // namespace jaxexp::bindings

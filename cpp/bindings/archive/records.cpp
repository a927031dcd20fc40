// Members by their names, by their contents and by their places.
#include "wire/archive/records.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "bindings/archive/index_view.h"
#include "bindings/base/define.h"
#include "bindings/base/objects.h"

namespace jaxexp::bindings {
namespace {

using Records = wire::ArchiveRecords;

using Take = nb::typed<nb::callable, void(nb::bytes)>;

wire::Sink sink(const Take& take) {
  return [&take](std::span<const std::uint8_t> bytes) { take(nb::bytes(bytes.data(), bytes.size())); };
}

void define_changes(nb::class_<Records>& records) {
  records.def(nb::init<>())
      .def(
          "build_on", [](Records& records, const IndexView& view) { records.build_on(view.index()); }, "index"_a,
          nb::keep_alive<1, 2>(), "Adds the members of an archive that is there; of many, when they are needed.")
      .def("__len__", &Records::size)
      .def("names", &Records::names)
      .def("get", &Records::get, "name"_a)
      .def("check_name", &Records::check_name, "name"_a, "Raises ValueError where a new member cannot have this name.")
      .def("put", &Records::put, "name"_a, "member"_a)
      .def_prop_ro(
          "weights_file_count", [](Records& records) { return records.weights().files().size(); },
          "How many files of weights there are.")
      .def(
          "add_weights",
          [](Records& records, std::uint64_t position, std::uint64_t size, std::uint32_t crc32, std::uint16_t header,
             const nb::typed<nb::iterable, wire::ArchiveWeights::Tensor>& tensors) {
            records.weights().add({position, size, crc32, header}, to_vector<wire::ArchiveWeights::Tensor>(tensors));
          },
          "position"_a, "size"_a, "crc32"_a, "header"_a, "tensors"_a,
          "Adds a file of weights behind the others, with its tensors: digest, position and size of each.")
      .def(
          "remove",
          [](Records& records, std::string_view name) {
            if (!records.contains(name)) throw nb::key_error("no such member");
            records.remove(name);
          },
          "name"_a);
}

void define_searches(nb::class_<Records>& records) {
  records.def("of_content", &Records::of_content, "digest"_a, "size"_a, "A member of this content.")
      .def(
          "module",
          [](const Records& records, const wire::Digest& digest, std::uint32_t size) {
            const auto* const module = records.module(digest, size);
            return module ? std::optional(module->position) : std::nullopt;
          },
          "digest"_a, "size"_a, "Where a module of this content is.")
      .def(
          "owned_module",
          [](const Records& records, const wire::Digest& digest, std::uint32_t size) {
            const auto* const module = records.owned_module(digest, size);
            return module ? std::optional(module->position) : std::nullopt;
          },
          "digest"_a, "size"_a, "Where a member has a module of this content inside its own bytes.")
      .def(
          "tensor",
          [](Records& records, const wire::Digest& digest) {
            const auto found = records.weights().find(digest);
            return found ? std::optional(std::pair(found->position, found->size)) : std::nullopt;
          },
          "digest"_a, "Where the weights have a tensor of this content: position and size.")
      .def("sharing", &Records::sharing, "position"_a, "The members that share another's bytes at a position.")
      .def(
          "using",
          [](Records& records, std::uint64_t position, std::uint64_t size) {
            return records.using_modules(position, position + size);
          },
          "position"_a, "size"_a, "The members whose modules are apart from them, within these bytes.");
}

void define_writing(nb::class_<Records>& records) {
  records
      .def(
          "write_directory",
          [](Records& records, const wire::Member::Place& index, std::uint64_t position, nb::bytes comment,
             std::uint64_t section, const Take& take) {
            records.write_directory(
                {std::string(wire::index_name), index.size, index.crc32, index.position - index.header}, position,
                {comment.c_str(), comment.size()}, section, sink(take));
          },
          "index"_a, "position"_a, "comment"_a, "section"_a, "take"_a,
          "Gives away, piece by piece, what stands behind the index, whose place is given, from a position on: the ZIP "
          "file's directory and end. `section` is where the section begins that was written.")
      .def(
          "write",
          [](Records& records, std::string_view writer, std::uint64_t end, const Take& take) {
            const wire::WrittenIndex index = records.write(writer, end, sink(take));
            return std::tuple(index.size, index.root_position, index.root_size, index.root_digest);
          },
          "writer"_a, "end"_a, "take"_a,
          "Gives away the bytes of the index, piece by piece. Returns its size; where its root is in it, the root's size "
          "and its digest.");
}

}  // namespace

void define_archive_records(nb::module_& m) {
  nb::class_<Records> records(m, "ArchiveRecords", "What the index of an archive that is being written will say.");
  define_changes(records);
  define_searches(records);
  define_writing(records);
}

}  // namespace jaxexp::bindings

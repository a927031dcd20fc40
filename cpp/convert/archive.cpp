// Members of archives as dicts, in both directions.
#include "convert/archive.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace jaxexp {
namespace {

using namespace nb::literals;

/// Of the alignment that the numbers in an index have.
nb::object aligned(nb::handle index) {
  const Buffer buffer(index);
  const auto bytes = buffer.bytes();
  if (!buffer.writable() && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) == 0)
    return nb::borrow(index);
  return nb::bytes(bytes.data(), bytes.size());
}

wire::Digest to_digest(nb::handle bytes) {
  const auto given = nb::cast<nb::bytes>(bytes);
  wire::Digest digest;
  if (given.size() != digest.size()) throw std::invalid_argument("a digest has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(given.data()), digest.size(), digest.begin());
  return digest;
}

nb::bytes to_bytes(const wire::Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

nb::str text(const flatbuffers::String* string) { return string ? nb::str(string->c_str(), string->size()) : nb::str(""); }

nb::dict to_dict(const wire::MemberRecord& record) {
  const auto optional = [](const std::optional<std::string>& text) { return text ? nb::cast(*text) : nb::none(); };
  nb::list modules;
  for (const auto& module : record.modules)
    modules.append(nb::make_tuple(module.position, module.size, to_bytes(module.digest)));
  nb::dict member;
  member["position"] = record.position;
  member["stored_size"] = record.stored_size;
  member["crc32"] = record.crc32;
  member["header"] = record.header;
  member["shared"] = record.shared;
  member["apart"] = record.apart;
  member["digest"] = to_bytes(record.digest);
  member["size"] = record.size;
  member["modules"] = nb::tuple(modules);
  member["fun_name"] = record.fun_name;
  member["jax_version"] = optional(record.jax_version);
  member["writer"] = record.writer;
  member["platforms"] = record.platforms;
  member["nr_devices"] = record.nr_devices;
  member["arguments"] = record.arguments;
  member["argument_count"] = record.argument_count;
  member["results"] = record.results;
  member["result_count"] = record.result_count;
  member["metadata"] = optional(record.metadata);
  member["own_metadata"] = record.own_metadata;
  return member;
}

wire::MemberRecord to_record(const nb::dict& member) {
  wire::MemberRecord record;
  const auto read = [&]<class T>(const char* key, T& target) { target = nb::cast<T>(member[key]); };
  read("position", record.position);
  read("stored_size", record.stored_size);
  read("crc32", record.crc32);
  read("header", record.header);
  read("shared", record.shared);
  read("apart", record.apart);
  record.digest = to_digest(member["digest"]);
  read("size", record.size);
  for (nb::handle module : member["modules"])
    record.modules.push_back({nb::cast<std::uint64_t>(module[0]), nb::cast<std::uint32_t>(module[1]), to_digest(module[2])});
  read("fun_name", record.fun_name);
  read("jax_version", record.jax_version);
  read("writer", record.writer);
  read("platforms", record.platforms);
  read("nr_devices", record.nr_devices);
  read("arguments", record.arguments);
  read("argument_count", record.argument_count);
  read("results", record.results);
  read("result_count", record.result_count);
  read("metadata", record.metadata);
  read("own_metadata", record.own_metadata);
  return record;
}

}  // namespace

IndexView::IndexView(nb::handle index, std::uint64_t root_position, std::uint64_t root_size, nb::bytes root_digest,
                     std::uint64_t end)
    : buffer_(aligned(index)), index_(buffer_.bytes(), root_position, root_size, to_digest(root_digest), end) {}

nb::object IndexView::find(std::string_view name) const {
  const auto number = index_.find(name);
  return number ? nb::cast(*number) : nb::none();
}

nb::list IndexView::names() const {
  nb::list names;
  for (std::uint32_t i = 0; i < index_.size(); ++i) names.append(name(i));
  return names;
}

nb::str IndexView::name(std::uint32_t number) const { return text(index_.member(number).name()); }

nb::dict IndexView::member(std::uint32_t number) const { return to_dict(wire::MemberRecord::of(index_.member(number))); }

nb::tuple IndexView::extent(std::uint32_t number) const {
  const auto& member = index_.member(number);
  nb::list modules;
  if (member.place()->apart())
    for (const auto* module : *member.modules()) modules.append(nb::make_tuple(module->position(), module->size()));
  return nb::make_tuple(member.place()->position(), member.place()->size(), nb::tuple(modules));
}

void IndexView::check() const {
  nb::gil_scoped_release release;
  index_.check();
}

void define_archive(nb::module_& m) {
  nb::class_<IndexView>(m, "ArchiveIndex", "The index of an archive in a buffer that is kept while this lives.")
      .def(nb::init<nb::handle, std::uint64_t, std::uint64_t, nb::bytes, std::uint64_t>(), "index"_a, "root_position"_a,
           "root_size"_a, "root_digest"_a, "end"_a,
           nb::sig("def __init__(self, index: typing_extensions.Buffer, root_position: int, root_size: int, "
                   "root_digest: bytes, end: int) -> None"))
      .def("__len__", [](const IndexView& view) { return view.index().size(); })
      .def_prop_ro("writer", [](const IndexView& view) { return nb::cast(view.index().writer()); },
                   nb::sig("def writer(self) -> str"))
      .def("find", &IndexView::find, "name"_a, nb::sig("def find(self, name: str) -> int | None"),
           "The number of a member.")
      .def("names", &IndexView::names, nb::sig("def names(self) -> list[str]"))
      .def("name", &IndexView::name, "number"_a)
      .def("member", &IndexView::member, "number"_a, nb::sig("def member(self, number: int) -> dict[str, typing.Any]"),
           "What the index says of a member.")
      .def("extent", &IndexView::extent, "number"_a,
           nb::sig("def extent(self, number: int) -> tuple[int, int, tuple[tuple[int, int], ...]]"),
           "Where its bytes are: position and size; and those of its modules if they are apart.")
      .def("check", &IndexView::check, "Checks all of it, and that members share no bytes by mistake.");

  using Records = wire::ArchiveRecords;
  nb::class_<Records>(m, "ArchiveRecords", "What the index of an archive that is being written will say.")
      .def(nb::init<>())
      .def("take", [](Records& records, const IndexView& view) { records.take(view.index()); }, "index"_a,
           "Adds the members of an archive that is there.")
      .def("__len__", [](const Records& records) { return records.members().size(); })
      .def("names",
           [](const Records& records) {
             nb::list names;
             for (const auto& [name, record] : records.members()) names.append(nb::cast(name));
             return names;
           },
           nb::sig("def names(self) -> list[str]"))
      .def("get",
           [](const Records& records, std::string_view name) -> nb::object {
             const auto found = records.members().find(name);
             return found == records.members().end() ? nb::none() : nb::object(to_dict(found->second));
           },
           "name"_a, nb::sig("def get(self, name: str) -> dict[str, typing.Any] | None"))
      .def("check_name", [](const Records& records, std::string_view name) { records.check_name(name); }, "name"_a,
           "Raises ValueError where a new member cannot have this name.")
      .def("put", [](Records& records, const std::string& name, const nb::dict& member) { records.put(name, to_record(member)); },
           "name"_a, "member"_a, nb::sig("def put(self, name: str, member: dict[str, typing.Any]) -> None"))
      .def("remove",
           [](Records& records, std::string_view name) {
             if (!records.members().contains(name)) throw nb::key_error("no such member");
             records.remove(name);
           },
           "name"_a)
      .def("of_content",
           [](const Records& records, nb::bytes digest, std::uint32_t size) -> nb::object {
             const std::string* const name = records.of_content(to_digest(digest), size);
             return name ? nb::cast(*name) : nb::none();
           },
           "digest"_a, "size"_a, nb::sig("def of_content(self, digest: bytes, size: int) -> str | None"),
           "A member that owns bytes of this content.")
      .def("module",
           [](const Records& records, nb::bytes digest, std::uint32_t size) -> nb::object {
             const auto* const module = records.module(to_digest(digest), size);
             return module ? nb::cast(module->position) : nb::none();
           },
           "digest"_a, "size"_a, nb::sig("def module(self, digest: bytes, size: int) -> int | None"),
           "Where a member has a module of this content.")
      .def("sharing",
           [](const Records& records, std::uint64_t position) {
             nb::list names;
             for (const auto& [name, record] : records.members())
               if (record.shared && record.position == position) names.append(nb::cast(name));
             return names;
           },
           "position"_a, nb::sig("def sharing(self, position: int) -> list[str]"),
           "The members that share another's bytes at a position.")
      .def("using",
           [](const Records& records, std::uint64_t position, std::uint64_t size) {
             nb::list names;
             for (const auto& [name, record] : records.members())
               if (record.apart && std::ranges::any_of(record.modules, [&](const auto& module) {
                     return module.position >= position && module.position < position + size;
                   }))
                 names.append(nb::cast(name));
             return names;
           },
           "position"_a, "size"_a, nb::sig("def using(self, position: int, size: int) -> list[str]"),
           "The members whose modules are apart from them, within these bytes.")
      .def("files",
           [](const Records& records) {
             nb::list files;
             for (const auto& [name, record] : records.members())
               if (!record.shared)
                 files.append(nb::make_tuple(name, record.apart, record.position, record.header, record.stored_size, record.crc32));
             return files;
           },
           nb::sig("def files(self) -> list[tuple[str, bool, int, int, int, int]]"),
           "The members that own bytes: name, whether modules are apart, position, size of the header, size, CRC-32.")
      .def("write",
           [](const Records& records, std::string_view writer, std::uint64_t end) {
             const wire::IndexBytes index = records.write(writer, end);
             return nb::make_tuple(nb::bytes(index.bytes.data(), index.bytes.size()), index.root_position,
                                   index.root_size, to_bytes(index.root_digest));
           },
           "writer"_a, "end"_a,
           nb::sig("def write(self, writer: str, end: int) -> tuple[bytes, int, int, bytes]"),
           "The bytes of the index; where its root is in them, its size and its digest.");
}

}  // namespace jaxexp

// Members of archives as dicts, in both directions.
#include "bindings/archive/archive.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "wire/archive/end.h"
#include "wire/archive/verify_member.h"
#include "wire/base/crew.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {
namespace {

using namespace nb::literals;
namespace schema = wire::schema;

wire::Digest to_digest(nb::handle bytes) {
  const auto given = nb::cast<nb::bytes>(bytes);
  wire::Digest digest;
  if (given.size() != digest.size()) throw std::invalid_argument("a digest has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(given.data()), digest.size(), digest.begin());
  return digest;
}

nb::bytes to_bytes(const wire::Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

nb::str text(const flatbuffers::String* string) {
  return string ? nb::str(string->c_str(), string->size()) : nb::str("");
}

/// Calls a function with the name and the place of each field that is a number or a text.
template <class Record, class Function>
void each_field(Record& record, const Function& function) {
  function("position", record.position);
  function("stored_size", record.stored_size);
  function("crc32", record.crc32);
  function("header", record.header);
  function("shared", record.shared);
  function("apart", record.apart);
  function("size", record.size);
  function("fun_name", record.fun_name);
  function("jax_version", record.jax_version);
  function("writer", record.writer);
  function("platforms", record.platforms);
  function("nr_devices", record.nr_devices);
  function("arguments", record.arguments);
  function("argument_count", record.argument_count);
  function("results", record.results);
  function("result_count", record.result_count);
  function("metadata", record.metadata);
  function("own_metadata", record.own_metadata);
}

nb::dict to_dict(const wire::MemberRecord& record) {
  nb::dict member;
  each_field(record, [&](const char* name, const auto& field) { member[name] = field; });
  nb::list modules;
  for (const auto& module : record.modules)
    modules.append(nb::make_tuple(module.position, module.size, to_bytes(module.digest)));
  member["modules"] = nb::tuple(modules);
  member["digest"] = to_bytes(record.digest);
  return member;
}

wire::MemberRecord to_record(const nb::dict& member) {
  wire::MemberRecord record;
  each_field(record, [&]<class T>(const char* name, T& field) { field = nb::cast<T>(member[name]); });
  for (nb::handle module : member["modules"])
    record.modules.push_back(
        {nb::cast<std::uint64_t>(module[0]), nb::cast<std::uint32_t>(module[1]), to_digest(module[2])});
  record.digest = to_digest(member["digest"]);
  return record;
}

/// A member as it is verified: from its header in the ZIP file on, and its modules where they are apart.
struct Part {
  Part(std::uint32_t number, std::span<const std::uint8_t> bytes) : number(number), bytes(bytes) {}

  std::uint32_t number;
  std::span<const std::uint8_t> bytes;
  std::vector<std::span<const std::uint8_t>> modules;
  std::optional<wire::Error> error = {};
};

/// For each damaged one its number, and where, what was expected, and what was found.
nb::list verify_parts(const wire::ArchiveIndex& index, std::vector<Part>& parts, std::size_t workers) {
  {
    wire::Known known;
    nb::gil_scoped_release release;
    constexpr std::size_t step = 16;
    const std::size_t jobs = (parts.size() + step - 1) / step;
    wire::Crew::run(workers, jobs, [&](std::size_t job) {
      for (Part& part : std::span(parts).subspan(job * step, std::min(step, parts.size() - job * step))) {
        try {
          wire::verify_member(index, part.number, part.bytes, part.modules, known);
        } catch (const wire::Error& error) {
          part.error = error;
        }
      }
    });
  }
  nb::list damaged;
  for (const Part& part : parts)
    if (const auto& error = part.error)
      damaged.append(nb::make_tuple(part.number, error->path, error->expected, error->found));
  return damaged;
}

/// The index is a member of the ZIP file, too.
nb::bytes last_bytes(std::vector<wire::ZipMember> files, const nb::dict& index, std::uint64_t position,
                     nb::bytes comment) {
  const auto number = [&](const char* key) { return nb::cast<std::uint64_t>(index[key]); };
  files.push_back({std::string(wire::index_name), static_cast<std::uint32_t>(number("stored_size")),
                   static_cast<std::uint32_t>(number("crc32")), number("position") - number("header")});
  const std::string bytes = wire::zip_end(files, position, {comment.c_str(), comment.size()});
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

IndexView::IndexView(nb::handle index, nb::handle root, nb::bytes root_digest, std::uint64_t end)
    : buffer_(stable(index, alignof(std::uint64_t))),
      root_(stable(root, alignof(std::uint64_t))),
      index_(buffer_->bytes(), root_->bytes(), to_digest(root_digest), end) {}

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

nb::dict IndexView::member(std::uint32_t number) const {
  return to_dict(wire::MemberRecord::of(index_.member(number)));
}

nb::tuple IndexView::extent(std::uint32_t number) const {
  const auto& member = index_.member(number);
  nb::list modules;
  if (member.place()->apart())
    for (const auto* module : *member.modules()) modules.append(nb::make_tuple(module->position(), module->size()));
  return nb::make_tuple(member.place()->position(), member.place()->size(), nb::tuple(modules));
}

nb::list IndexView::find_all(const nb::list& names) const {
  nb::list numbers;
  for (nb::handle name : names) {
    const auto number = nb::isinstance<nb::str>(name) ? index_.find(nb::cast<std::string_view>(name)) : std::nullopt;
    if (!number) throw nb::key_error(nb::cast<std::string>(nb::repr(name)).c_str());
    numbers.append(*number);
  }
  return numbers;
}

nb::list IndexView::extents(const nb::list& numbers) const {
  nb::list extents;
  for (nb::handle number : numbers) extents.append(extent(nb::cast<std::uint32_t>(number)));
  return extents;
}

nb::list IndexView::zip_extents(const nb::list& numbers) const {
  nb::list extents;
  for (nb::handle given : numbers) {
    const auto number = nb::cast<std::uint32_t>(given);
    const schema::Place& place = *index_.member(number).place();
    extents.append(nb::make_tuple(place.position() - place.header(), std::uint64_t{place.header()} + place.size(),
                                  extent(number)[2]));
  }
  return extents;
}

nb::list IndexView::own_metadata(const nb::list& numbers) const {
  nb::list found;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto& member = index_.member(nb::cast<std::uint32_t>(numbers[i]));
    if (member.own_metadata()) found.append(nb::make_tuple(i, text(member.metadata())));
  }
  return found;
}

nb::list IndexView::verify(const nb::list& numbers, const nb::list& parts, std::size_t workers) const {
  std::vector<std::unique_ptr<const Buffer>> buffers;  // as long as they are read
  const auto bytes_of = [&](nb::handle part) {
    return buffers.emplace_back(std::make_unique<const Buffer>(part))->bytes();
  };
  std::vector<Part> members;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Part& part = members.emplace_back(nb::cast<std::uint32_t>(numbers[i]), bytes_of(parts[i][0]));
    for (nb::handle module : nb::borrow<nb::list>(parts[i][1])) part.modules.push_back(bytes_of(module));
  }
  return verify_parts(index_, members, workers);
}

nb::tuple IndexView::verify_from(std::uint32_t first, nb::handle file, std::size_t workers) const {
  const Buffer buffer(file);
  const auto bytes = buffer.bytes();
  std::vector<Part> members;
  constexpr std::size_t most = std::size_t{1} << 26;  // without a sign of life
  std::uint32_t number = first;
  for (std::size_t size = 0; number < index_.size() && size < most; ++number) {
    const schema::Member& member = index_.member(number);
    const schema::Place& place = *member.place();
    if (place.shared()) continue;
    // All places are in front of the index.
    if (place.position() + place.size() > bytes.size())
      throw nb::value_error("the file is shorter than its index says");
    const auto start = static_cast<std::size_t>(place.position() - place.header());
    Part& part = members.emplace_back(number, bytes.subspan(start, std::size_t{place.header()} + place.size()));
    size += part.bytes.size();
    if (!place.apart()) continue;
    for (const schema::Module* module : *member.modules()) {
      part.modules.push_back(bytes.subspan(module->position(), module->size()));
      size += module->size();
    }
  }
  return nb::make_tuple(number, verify_parts(index_, members, workers));
}

nb::list IndexView::sharing(std::uint32_t number) const {
  const std::uint64_t position = index_.member(number).place()->position();
  nb::list numbers;
  for (std::uint32_t i = 0; i < index_.size(); ++i)
    if (index_.member(i).place()->position() == position) numbers.append(i);
  return numbers;
}

void IndexView::check() const {
  nb::gil_scoped_release release;
  index_.check();
}

void define_archive(nb::module_& m) {
  nb::class_<IndexView>(m, "ArchiveIndex", "The index of an archive in a buffer that is kept while this lives.")
      .def(nb::init<nb::handle, nb::handle, nb::bytes, std::uint64_t>(), "index"_a, "root"_a, "root_digest"_a, "end"_a,
           nb::sig("def __init__(self, index: typing_extensions.Buffer, root: typing_extensions.Buffer, "
                   "root_digest: bytes, end: int) -> None"))
      .def(
          "__len__", [](const IndexView& view) { return view.index().size(); }, nb::sig("def __len__(self) -> int"))
      .def("find", &IndexView::find, "name"_a, nb::sig("def find(self, name: str) -> int | None"),
           "The number of a member.")
      .def("names", &IndexView::names, nb::sig("def names(self) -> list[str]"))
      .def("name", &IndexView::name, "number"_a)
      .def("member", &IndexView::member, "number"_a, nb::sig("def member(self, number: int) -> dict[str, typing.Any]"),
           "What the index says of a member.")
      .def("extent", &IndexView::extent, "number"_a,
           nb::sig("def extent(self, number: int) -> tuple[int, int, tuple[tuple[int, int], ...]]"),
           "Where its bytes are: position and size; and those of its modules if they are apart.")
      .def("find_all", &IndexView::find_all, "names"_a, nb::sig("def find_all(self, names: list[str]) -> list[int]"),
           "The numbers of members. Raises KeyError where there is no such member.")
      .def("extents", &IndexView::extents, "numbers"_a,
           nb::sig("def extents(self, numbers: list[int]) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]"),
           "`extent` of several members.")
      .def("zip_extents", &IndexView::zip_extents, "numbers"_a,
           nb::sig("def zip_extents(self, numbers: list[int]) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]"),
           "The same from their headers in the ZIP file on.")
      .def("own_metadata", &IndexView::own_metadata, "numbers"_a,
           nb::sig("def own_metadata(self, numbers: list[int]) -> list[tuple[int, str]]"),
           "For members with metadata that were given to the archive: the place in the list, and the JSON text.")
      .def(
          "last_bytes",
          [](const IndexView& view, const nb::dict& index, std::uint64_t position, nb::bytes comment) {
            return last_bytes(view.index().files(), index, position, comment);
          },
          "index"_a, "position"_a, "comment"_a,
          nb::sig("def last_bytes(self, index: dict[str, int], position: int, comment: bytes) -> bytes"),
          "What has to stand behind the index, as `ArchiveRecords.last_bytes` has it.")
      .def(
          "verify", &IndexView::verify, "numbers"_a, "parts"_a, "workers"_a,
          nb::sig("def verify(self, numbers: list[int], parts: list[tuple[typing_extensions.Buffer, "
                  "list[typing_extensions.Buffer]]], workers: int) -> list[tuple[int, str, str, str]]"),
          "Compares members with what they have to be, in threads. Parts are the bytes of a member, from its header in "
          "the ZIP file on, and of its modules if they are apart. Returns for each damaged one its number, and where, "
          "what was expected, and what was found.")
      .def(
          "verify_from", &IndexView::verify_from, "first"_a, "file"_a, "workers"_a,
          nb::sig("def verify_from(self, first: int, file: typing_extensions.Buffer, workers: int) "
                  "-> tuple[int, list[tuple[int, str, str, str]]]"),
          "The same of those who own their bytes, from a number on, where all of the file is in memory. Returns at which "
          "it stopped, too. The index has to be checked.")
      .def("sharing", &IndexView::sharing, "number"_a, nb::sig("def sharing(self, number: int) -> list[int]"),
           "All members with the same bytes.")
      .def("check", &IndexView::check, "Checks all of it, and that members share no bytes by mistake.");

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

  using Records = wire::ArchiveRecords;
  nb::class_<Records>(m, "ArchiveRecords", "What the index of an archive that is being written will say.")
      .def(nb::init<>())
      .def(
          "take", [](Records& records, const IndexView& view) { records.take(view.index()); }, "index"_a,
          "Adds the members of an archive that is there.")
      .def("__len__", [](const Records& records) { return records.members().size(); })
      .def(
          "names",
          [](const Records& records) {
            nb::list names;
            for (const auto& [name, record] : records.members()) names.append(nb::cast(name));
            return names;
          },
          nb::sig("def names(self) -> list[str]"))
      .def(
          "get",
          [](const Records& records, std::string_view name) -> nb::object {
            const auto found = records.members().find(name);
            return found == records.members().end() ? nb::none() : nb::object(to_dict(found->second));
          },
          "name"_a, nb::sig("def get(self, name: str) -> dict[str, typing.Any] | None"))
      .def(
          "check_name", [](const Records& records, std::string_view name) { records.check_name(name); }, "name"_a,
          "Raises ValueError where a new member cannot have this name.")
      .def(
          "put",
          [](Records& records, const std::string& name, const nb::dict& member) {
            records.put(name, to_record(member));
          },
          "name"_a, "member"_a, nb::sig("def put(self, name: str, member: dict[str, typing.Any]) -> None"))
      .def(
          "remove",
          [](Records& records, std::string_view name) {
            if (!records.members().contains(name)) throw nb::key_error("no such member");
            records.remove(name);
          },
          "name"_a)
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
          "sharing",
          [](const Records& records, std::uint64_t position) {
            nb::list names;
            for (const auto& [name, record] : records.members())
              if (record.shared && record.position == position) names.append(nb::cast(name));
            return names;
          },
          "position"_a, nb::sig("def sharing(self, position: int) -> list[str]"),
          "The members that share another's bytes at a position.")
      .def(
          "using",
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
      .def(
          "last_bytes",
          [](const Records& records, const nb::dict& index, std::uint64_t position, nb::bytes comment) {
            return last_bytes(records.files(), index, position, comment);
          },
          "index"_a, "position"_a, "comment"_a,
          nb::sig("def last_bytes(self, index: dict[str, int], position: int, comment: bytes) -> bytes"),
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

}  // namespace jaxexp::bindings

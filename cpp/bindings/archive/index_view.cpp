// Numbers, texts and tuples from an index.
#include "bindings/archive/index_view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/archive/member.h"
#include "bindings/base/digest.h"
#include "wire/archive/verify_member.h"
#include "wire/base/crew.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {
namespace {

using namespace nb::literals;
namespace schema = wire::schema;

nb::str text(const flatbuffers::String* string) {
  return string ? nb::str(string->c_str(), string->size()) : nb::str("");
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

void define_finding(nb::class_<IndexView>& index) {
  index
      .def(nb::init<nb::handle, nb::handle, nb::bytes, std::uint64_t>(), "index"_a, "root"_a, "root_digest"_a, "end"_a,
           nb::sig("def __init__(self, index: typing_extensions.Buffer, root: typing_extensions.Buffer, "
                   "root_digest: bytes, end: int) -> None"))
      .def(
          "__len__", [](const IndexView& view) { return view.index().size(); }, nb::sig("def __len__(self) -> int"))
      .def("find", &IndexView::find, "name"_a, nb::sig("def find(self, name: str) -> int | None"),
           "The number of a member.")
      .def("names", &IndexView::names, nb::sig("def names(self) -> list[str]"))
      .def("name", &IndexView::name, "number"_a)
      .def("member", &IndexView::member, "number"_a, "What the index says of a member.")
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
           "For members with metadata that were given to the archive: the place in the list, and the JSON text.");
}

void define_checking(nb::class_<IndexView>& index) {
  index
      .def(
          "last_bytes",
          [](const IndexView& view, const wire::Member::Place& index, std::uint64_t position, nb::bytes comment) {
            return last_bytes(view.index().files(), index, position, comment);
          },
          "index"_a, "position"_a, "comment"_a,
          nb::sig("def last_bytes(self, index: MemberPlace, position: int, comment: bytes) -> bytes"),
          "What has to stand behind the index, as `ArchiveRecords.last_bytes` has it.")
      .def(
          "verify", &IndexView::verify, "numbers"_a, "parts"_a, "workers"_a,
          nb::sig("def verify(self, numbers: list[int], parts: list[tuple[typing_extensions.Buffer, "
                  "list[typing_extensions.Buffer]]], workers: int) -> list[tuple[int, str, str, str]]"),
          "Compares members with what they have to be, in threads. Parts are the bytes of a member, from its header in "
          "the ZIP file on, and of its modules if they are apart. Returns for each damaged one its number, and where, "
          "what was expected, and what was found.")
      .def("verify_from", &IndexView::verify_from, "first"_a, "file"_a, "workers"_a,
           nb::sig("def verify_from(self, first: int, file: typing_extensions.Buffer, workers: int) "
                   "-> tuple[int, list[tuple[int, str, str, str]]]"),
           "The same of those who own their bytes, from a number on, where all of the file is in memory. Returns at "
           "which it stopped, too. The index has to be checked.")
      .def("sharing", &IndexView::sharing, "number"_a, nb::sig("def sharing(self, number: int) -> list[int]"),
           "All members with the same bytes.")
      .def("check", &IndexView::check, "Checks all of it, and that members share no bytes by mistake.");
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

wire::Member IndexView::member(std::uint32_t number) const { return wire::Member::of(index_.member(number)); }

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
  constexpr std::size_t most = std::size_t{1} << 26;  // without a result for the caller
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

void define_index(nb::module_& m) {
  nb::class_<IndexView> index(m, "ArchiveIndex", "The index of an archive in a buffer that is kept while this lives.");
  define_finding(index);
  define_checking(index);
}

}  // namespace jaxexp::bindings

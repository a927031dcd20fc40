// Numbers, texts and tuples from an index.
#include "bindings/archive/index_view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bindings/archive/member.h"
#include "bindings/base/digest.h"
#include "bindings/base/owned.h"
#include "bindings/base/text.h"
#include "wire/archive/weights.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {
namespace {

namespace schema = wire::schema;

/// Blocks have numbers of eight bytes, which are read where they lie.
std::span<const std::uint8_t> part_of(std::span<const std::uint8_t> bytes, std::uint64_t position, std::uint64_t size) {
  if (position > bytes.size() || size > bytes.size() - position) throw nb::value_error("an index lies in its file");
  const auto part = bytes.subspan(position, size);
  if (!Buffer::is_aligned(part, alignof(std::uint64_t)))
    throw wire::Error({nullptr, "index"}, "an index at a multiple of eight bytes",
                      "one at " + std::to_string(position));
  return part;
}

nb::str text(const flatbuffers::String* string) { return bindings::text(string ? string->string_view() : ""); }

void define_finding(nb::class_<IndexView>& index) {
  index
      .def(nb::init<nb::handle, nb::handle, nb::bytes, std::uint64_t>(), "index"_a, "root"_a, "root_digest"_a, "end"_a,
           nb::sig("def __init__(self, index: typing_extensions.Buffer, root: typing_extensions.Buffer, "
                   "root_digest: bytes, end: int) -> None"))
      .def_static(
          "of_file",
          [](nb::handle file, std::uint64_t position, std::uint64_t size, nb::handle root, nb::bytes root_digest) {
            return new IndexView(nb::cast<const wire::FileBytes&>(file), file, position, size, root, root_digest);
          },
          "file"_a, "position"_a, "size"_a, "root"_a, "root_digest"_a, nb::rv_policy::take_ownership,
          nb::sig("def of_file(file: FileBytes, position: int, size: int, root: typing_extensions.Buffer, "
                  "root_digest: bytes) -> ArchiveIndex"),
          "The index in a file, of which each block is read when it is needed.")
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
      .def("owners", &IndexView::owners, "numbers"_a, nb::sig("def owners(self, numbers: list[int]) -> list[int]"),
           "For each of several members, the first among them with the same bytes; best the one that owns them.")
      .def("own_metadata", &IndexView::own_metadata, "numbers"_a,
           nb::sig("def own_metadata(self, numbers: list[int]) -> list[tuple[int, str]]"),
           "For members with metadata that were given to the archive: the place in the list, and the JSON text.")
      .def("weights_files", &IndexView::weights_files,
           nb::sig("def weights_files(self) -> list[tuple[int, int, int, int]]"),
           "Files of weights: position, size, CRC-32, and the size of the ZIP header in front of each.")
      .def("tensors", &IndexView::tensors, nb::sig("def tensors(self) -> list[tuple[bytes, int, int]]"),
           "The tensors in these files: digest, position and size.")
      .def("tensor", &IndexView::tensor, "digest"_a,
           nb::sig("def tensor(self, digest: bytes) -> tuple[int, int] | None"),
           "Where the weights have a tensor of this content: position and size.");
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
      .def("check", &IndexView::check, "Checks all of it, and that members share no bytes by mistake.");
}

}  // namespace

IndexView::IndexView(nb::handle index, nb::handle root, nb::bytes root_digest, std::uint64_t end)
    : buffer_(stable(index, alignof(std::uint64_t))),
      root_(stable(root, alignof(std::uint64_t))),
      index_(buffer_->bytes(), root_->bytes(), to_digest(root_digest), end) {}

IndexView::IndexView(const wire::FileBytes& file, nb::handle owner, std::uint64_t position, std::uint64_t size,
                     nb::handle root, nb::bytes root_digest)
    : buffer_(std::make_shared<const Buffer>(owner, /*in_parts=*/true)),
      root_(stable(root, alignof(std::uint64_t))),
      index_(part_of(file.bytes(), position, size), root_->bytes(), to_digest(root_digest), position, &file) {}

nb::object IndexView::find(std::string_view name) const {
  const auto number = index_.find(name);
  return number ? nb::cast(*number) : nb::none();
}

nb::list IndexView::names() const {
  index_.check_names();
  nb::list names = new_list();
  for (std::uint32_t i = 0; i < index_.size(); ++i) names.append(name(i));
  return names;
}

nb::str IndexView::name(std::uint32_t number) const { return text(index_.member(number).name()); }

wire::Member IndexView::member(std::uint32_t number) const {
  wire::Member::Texts texts;
  return wire::Member::of(index_.member(number), texts);
}

nb::tuple IndexView::extent(std::uint32_t number) const {
  const auto& member = index_.member(number);
  nb::list modules = new_list();
  if (member.place()->apart())
    for (const auto* module : *member.modules()) modules.append(nb::make_tuple(module->position(), module->size()));
  return nb::make_tuple(member.place()->position(), member.place()->size(), nb::tuple(modules));
}

nb::list IndexView::find_all(const nb::list& names) const {
  nb::list numbers = new_list();
  for (nb::handle name : names) {
    const auto number = nb::isinstance<nb::str>(name) ? index_.find(nb::cast<std::string_view>(name)) : std::nullopt;
    if (!number) throw nb::key_error(nb::cast<std::string>(nb::repr(name)).c_str());
    numbers.append(*number);
  }
  return numbers;
}

nb::list IndexView::extents(const nb::list& numbers) const {
  nb::list extents = new_list();
  for (nb::handle number : numbers) extents.append(extent(nb::cast<std::uint32_t>(number)));
  return extents;
}

nb::list IndexView::zip_extents(const nb::list& numbers) const {
  nb::list extents = new_list();
  for (nb::handle given : numbers) {
    const auto number = nb::cast<std::uint32_t>(given);
    const schema::Place& place = *index_.member(number).place();
    extents.append(nb::make_tuple(place.position() - place.header(), std::uint64_t{place.header()} + place.size(),
                                  extent(number)[2]));
  }
  return extents;
}

nb::list IndexView::owners(const nb::list& numbers) const {
  struct Place {
    std::uint64_t position;
    bool shared;
    std::size_t at;  // in `numbers`
    auto operator<=>(const Place&) const = default;
  };
  std::vector<std::uint32_t> given;
  std::vector<Place> places;
  given.reserve(numbers.size());
  places.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    given.push_back(nb::cast<std::uint32_t>(numbers[i]));
    const schema::Place& place = *index_.member(given.back()).place();
    places.push_back({place.position(), place.shared(), i});
  }
  std::ranges::sort(places);
  std::vector<std::uint32_t> owners(given.size());
  const Place* owner = nullptr;  // the first of those at one position
  for (const Place& place : places) {
    if (!owner || owner->position != place.position) owner = &place;
    owners[place.at] = given[owner->at];
  }
  nb::list found = new_list();
  for (const std::uint32_t number : owners) found.append(number);
  return found;
}

nb::list IndexView::own_metadata(const nb::list& numbers) const {
  nb::list found = new_list();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto& member = index_.member(nb::cast<std::uint32_t>(numbers[i]));
    if (member.own_metadata()) found.append(nb::make_tuple(i, text(member.metadata())));
  }
  return found;
}

nb::list IndexView::weights_files() const {
  nb::list files = new_list();
  if (const auto* weights = index_.weights())
    for (const schema::WeightsFile& file : wire::files_of(*weights))
      files.append(nb::make_tuple(file.position(), file.size(), file.crc32(), file.header()));
  return files;
}

nb::list IndexView::tensors() const {
  nb::list tensors = new_list();
  if (const auto* weights = index_.weights())
    for (const schema::WeightsTensor* tensor : *weights->tensors())
      tensors.append(nb::make_tuple(to_bytes(wire::stored(tensor->digest())), tensor->position(), tensor->size()));
  return tensors;
}

nb::object IndexView::tensor(const nb::bytes& digest) const {
  const auto* const weights = index_.weights();
  const auto* const found = weights ? wire::find_tensor(*weights, to_digest(digest)) : nullptr;
  return found ? nb::object(nb::make_tuple(found->position(), found->size())) : nb::none();
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

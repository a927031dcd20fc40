// Numbers, texts and tuples from an index.
#include "bindings/archive/index_view.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bindings/archive/member.h"
#include "bindings/base/define.h"
#include "bindings/base/owned.h"
#include "wire/archive/weights.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {
namespace {

namespace schema = wire::schema;

/// Blocks have numbers of eight bytes, which are read where they lie.
std::vector<wire::ArchiveIndex::Part> all_of(std::span<const std::uint8_t> bytes, std::uint64_t position,
                                             std::uint64_t size) {
  if (position > bytes.size() || size > bytes.size() - position) throw nb::value_error("an index lies in its file");
  if (!Buffer::is_aligned(bytes.subspan(position, size), alignof(std::uint64_t)))
    throw wire::Error({nullptr, "index"}, "an index at a multiple of eight bytes",
                      "one at " + std::to_string(position));
  return {{0, bytes}};
}

std::string_view text(const flatbuffers::String* string) { return string ? string->string_view() : ""; }

std::string_view name(const IndexView& view, std::uint32_t number) { return text(view.index().member(number).name()); }

std::vector<std::string_view> names(const IndexView& view, std::string_view beginning) {
  const wire::ArchiveIndex& index = view.index();
  std::vector<std::string_view> names;
  if (beginning.empty()) index.check_names();
  const std::uint32_t first = beginning.empty() ? 0 : index.lower_bound(beginning);
  std::uint32_t end = first;
  for (; end < index.size() && name(view, end).starts_with(beginning); ++end) names.push_back(name(view, end));
  if (!beginning.empty()) index.check_names(first, end);
  return names;
}

wire::Member member(const IndexView& view, std::uint32_t number) {
  wire::Member::Texts texts;
  return wire::Member::of(view.index().member(number), texts);
}

Extent extent(const IndexView& view, std::uint32_t number) {
  const auto& member = view.index().member(number);
  nb::list modules = new_list();
  if (member.place()->apart())
    for (const auto* module : *member.modules()) modules.append(nb::make_tuple(module->position(), module->size()));
  return nb::make_tuple(member.place()->position(), member.place()->size(), nb::tuple(modules));
}

std::vector<std::uint32_t> find_all(const IndexView& view, const Argument<nb::list, nb::str>& names) {
  std::vector<std::uint32_t> numbers;
  for (nb::handle name : names) {
    const auto number =
        nb::isinstance<nb::str>(name) ? view.index().find(nb::cast<std::string_view>(name)) : std::nullopt;
    if (!number) throw nb::key_error(nb::cast<std::string>(nb::repr(name)).c_str());
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<Extent> extents(const IndexView& view, const Numbers& numbers) {
  std::vector<Extent> extents;
  for (nb::handle number : numbers) extents.push_back(extent(view, nb::cast<std::uint32_t>(number)));
  return extents;
}

std::vector<Extent> zip_extents(const IndexView& view, const Numbers& numbers) {
  std::vector<Extent> extents;
  for (const std::uint32_t number : to_vector<std::uint32_t>(numbers)) {
    const schema::Place& place = *view.index().member(number).place();
    extents.push_back(nb::make_tuple(place.position() - place.header(), std::uint64_t{place.header()} + place.size(),
                                     extent(view, number)[2]));
  }
  return extents;
}

std::vector<std::uint32_t> owners(const IndexView& view, const Numbers& given) {
  struct Place {
    std::uint64_t position;
    bool shared;
    std::size_t at;  // in `numbers`
    auto operator<=>(const Place&) const = default;
  };
  const auto numbers = to_vector<std::uint32_t>(given);
  std::vector<Place> places;
  places.reserve(numbers.size());
  for (const std::uint32_t number : numbers) {
    const schema::Place& place = *view.index().member(number).place();
    places.push_back({place.position(), place.shared(), places.size()});
  }
  std::ranges::sort(places);
  std::vector<std::uint32_t> owners(numbers.size());
  const Place* owner = nullptr;  // the first of those at one position
  for (const Place& place : places) {
    if (!owner || owner->position != place.position) owner = &place;
    owners[place.at] = numbers[owner->at];
  }
  return owners;
}

std::vector<std::pair<std::size_t, std::string_view>> own_metadata(const IndexView& view, const Numbers& numbers) {
  std::vector<std::pair<std::size_t, std::string_view>> found;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto& member = view.index().member(nb::cast<std::uint32_t>(numbers[i]));
    if (member.own_metadata()) found.emplace_back(i, text(member.metadata()));
  }
  return found;
}

std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint16_t>> weights_files(
    const IndexView& view) {
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint16_t>> files;
  if (const auto* weights = view.index().weights())
    for (const schema::WeightsFile& file : wire::files_of(*weights))
      files.emplace_back(file.position(), file.size(), file.crc32(), file.header());
  return files;
}

std::vector<wire::ArchiveWeights::Tensor> tensors(const IndexView& view) {
  std::vector<wire::ArchiveWeights::Tensor> tensors;
  if (const auto* weights = view.index().weights())
    for (const schema::WeightsTensor* tensor : *weights->tensors())
      tensors.push_back({wire::stored(tensor->digest()), tensor->position(), tensor->size()});
  return tensors;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> tensor(const IndexView& view, const wire::Digest& digest) {
  const auto* const weights = view.index().weights();
  const auto* const found = weights ? wire::find_tensor(*weights, digest) : nullptr;
  return found ? std::optional(std::pair(found->position(), found->size())) : std::nullopt;
}

}  // namespace

IndexView::IndexView(HasBuffer index, HasBuffer root, const wire::Digest& root_digest, std::uint64_t end)
    : buffer_(stable(index, alignof(std::uint64_t))), root_(stable(root, alignof(std::uint64_t))) {
  index_.emplace(buffer_->bytes(), root_->bytes(), root_digest, end);
}

IndexView::IndexView(const ReadMany& read, std::uint64_t position, std::uint64_t size, HasBuffer root,
                     const wire::Digest& root_digest)
    : root_(stable(root, alignof(std::uint64_t))) {
  const auto fetch = [&](const wire::IndexParts::Places& places,
                         const std::function<void(std::span<const std::uint8_t>)>& take) {
    const nb::list given = nb::cast<nb::list>(read(places));
    if (given.size() != places.size()) throw nb::value_error("as many ranges as were asked for");
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Buffer buffer(given[i]);
      if (buffer.bytes().size() != places[i].second) throw nb::value_error("a range as long as was asked for");
      take(buffer.bytes());
    }
  };
  parts_.read(fetch, root_->bytes(), root_digest, position, size);
  index_.emplace(parts_.parts(), root_->bytes(), root_digest, position, size);
}

IndexView::IndexView(const wire::FileBytes& file, nb::handle owner, std::uint64_t position, std::uint64_t size,
                     HasBuffer root, const wire::Digest& root_digest)
    : buffer_(std::make_shared<const Buffer>(owner, /*in_parts=*/true)), root_(stable(root, alignof(std::uint64_t))) {
  index_.emplace(all_of(file.bytes(), position, size), root_->bytes(), root_digest, position, size,
                 [&file](auto part) { fetch(file, part); });
}

void define_archive_index(nb::module_& m) {
  nb::class_<IndexView>(m, "ArchiveIndex", "The index of an archive in a buffer that is kept while this lives.")
      .def(nb::init<HasBuffer, HasBuffer, const wire::Digest&, std::uint64_t>(), "index"_a, "root"_a, "root_digest"_a,
           "end"_a)
      .def_static(
          "of_file",
          [](nb::typed<nb::handle, wire::FileBytes> file, std::uint64_t position, std::uint64_t size, HasBuffer root,
             const wire::Digest& root_digest) {
            return new IndexView(nb::cast<const wire::FileBytes&>(file), file, position, size, root, root_digest);
          },
          "file"_a, "position"_a, "size"_a, "root"_a, "root_digest"_a, nb::rv_policy::take_ownership,
          "The index in a file, of which each block is read when it is needed.")
      .def_static(
          "of_parts",
          [](const ReadMany& read, std::uint64_t position, std::uint64_t size, HasBuffer root,
             const wire::Digest& root_digest) { return new IndexView(read, position, size, root, root_digest); },
          "read"_a, "position"_a, "size"_a, "root"_a, "root_digest"_a, nb::rv_policy::take_ownership,
          "The index with such a root, of which all parts are read at once, wherever in the file they are.")
      .def_prop_ro(
          "is_of_changes", [](const IndexView& view) { return view.index().is_of_changes(); },
          "Whether it refers to earlier indexes, because an append wrote only what it changed.")
      .def("__len__", [](const IndexView& view) { return view.index().size(); })
      .def(
          "find", [](const IndexView& view, std::string_view name) { return view.index().find(name); }, "name"_a,
          "The number of a member.")
      .def("names", &names, "beginning"_a = "", nb::call_guard<Unlocked>(),
           "The names of members, in ascending order, that begin with a text.")
      .def("name", &name, "number"_a)
      .def("member", &member, "number"_a, "What the index says of a member.")
      .def("extent", &extent, "number"_a,
           "Where its bytes are: position and size; and those of its modules if they are apart.")
      .def("find_all", &find_all, "names"_a, "The numbers of members. Raises KeyError where there is no such member.")
      .def("extents", &extents, "numbers"_a, "`extent` of several members.")
      .def("zip_extents", &zip_extents, "numbers"_a, "The same from their headers in the ZIP file on.")
      .def("owners", &owners, "numbers"_a,
           "For each of several members, the first among them with the same bytes; best the one that owns them.")
      .def("own_metadata", &own_metadata, "numbers"_a,
           "For members with metadata that were given to the archive: the place in the list, and the JSON text.")
      .def("weights_files", &weights_files, nb::call_guard<Unlocked>(),
           "Files of weights: position, size, CRC-32, and the size of the ZIP header in front of each.")
      .def("tensors", &tensors, nb::call_guard<Unlocked>(), "The tensors in these files: digest, position and size.")
      .def("tensor", &tensor, "digest"_a, "Where the weights have a tensor of this content: position and size.")
      .def(
          "last_bytes",
          [](const IndexView& view, const wire::Member::Place& index, std::uint64_t position, nb::bytes comment,
             std::uint64_t section) {
            return last_bytes(unlocked([&] { return view.index().files(section); }), index, position, comment);
          },
          "index"_a, "position"_a, "comment"_a, "section"_a = 0,
          "What has to stand behind the index, as `ArchiveRecords.last_bytes` has it.")
      .def(
          "check", [](const IndexView& view) { view.index().check(); }, nb::call_guard<Unlocked>(),
          "Checks all of it, and that members share no bytes by mistake.");
}

}  // namespace jaxexp::bindings

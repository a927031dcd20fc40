// Numbers, texts and tuples from an index.
#include "bindings/archive/index_view.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <string_view>

#include "bindings/base/define.h"
#include "bindings/base/objects.h"
#include "wire/archive/end.h"
#include "wire/artifact/layout.h"
#include "wire/base/digest.h"
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

/// What stands behind the index from `position` on: the directory of the ZIP file, which has the index as a member,
/// too, and its end with the comment.
nb::bytes last_bytes(std::vector<wire::ZipMember> files, const wire::Member::Place& index, std::uint64_t position,
                     const nb::bytes& comment) {
  files.push_back({std::string(wire::index_name), index.size, index.crc32, index.position - index.header});
  return to_bytes(wire::zip_end(files, position, {comment.c_str(), comment.size()}));
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

// Members, their places and what they say of a function.

using wire::Member, wire::Text;

namespace {

Text text_of(const nb::str& text) {
  Py_ssize_t size;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!bytes) throw nb::python_error();
  return std::string(bytes, static_cast<std::size_t>(size));
}

std::optional<Text> text_of(const std::optional<nb::str>& text) {
  return text ? std::optional(text_of(*text)) : std::nullopt;
}

void define_place(nb::module_& m) {
  using Place = Member::Place;
  nb::class_<Place>(m, "MemberPlace", "Where the bytes of a member are in an archive's file.")
      .def(nb::init<std::uint64_t, std::uint32_t, std::uint32_t, std::uint16_t, bool, bool>(), "position"_a, "size"_a,
           "crc32"_a, "header"_a, "shared"_a = false, "apart"_a = false)
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
          [](Summary* summary, const nb::str& fun_name, const std::optional<nb::str>& jax_version,
             const nb::str& writer, const nb::str& platforms, std::uint32_t nr_devices, const nb::str& arguments,
             std::uint32_t argument_count, const nb::str& results, std::uint32_t result_count) {
            new (summary)
                Summary{text_of(fun_name),  text_of(jax_version), text_of(writer),  text_of(platforms), nr_devices,
                        text_of(arguments), argument_count,       text_of(results), result_count};
          },
          nb::kw_only(), "fun_name"_a, "jax_version"_a.none(), "writer"_a, "platforms"_a, "nr_devices"_a, "arguments"_a,
          "argument_count"_a, "results"_a, "result_count"_a)
      .def_ro("fun_name", &Summary::fun_name)
      .def_ro("jax_version", &Summary::jax_version)
      .def_ro("writer", &Summary::writer)
      .def_ro("platforms", &Summary::platforms)
      .def_ro("nr_devices", &Summary::nr_devices)
      .def_ro("arguments", &Summary::arguments)
      .def_ro("argument_count", &Summary::argument_count)
      .def_ro("results", &Summary::results)
      .def_ro("result_count", &Summary::result_count);
}

}  // namespace

void define_archive_member(nb::module_& m) {
  define_place(m);
  define_summary(m);
  nb::class_<Member>(m, "Member", "What the index of an archive says of a member.")
      .def(
          "__init__",
          [](Member* member, const Member::Summary& summary, const wire::Digest& digest, std::uint32_t size,
             const std::optional<nb::str>& metadata,
             bool own_metadata) { new (member) Member{summary, digest, size, text_of(metadata), own_metadata}; },
          nb::kw_only(), "summary"_a, "digest"_a, "size"_a, "metadata"_a.none(), "own_metadata"_a)
      .def(
          "at",
          [](const Member& member, const Member::Place& place, const nb::typed<nb::iterable, Member::Module>& modules) {
            Member stored = member;
            stored.place = place;
            stored.modules = to_vector<Member::Module>(modules);
            return stored;
          },
          "place"_a, "modules"_a, "The same, with its bytes and its modules in other places.")
      .def_prop_ro("summary", [](const Member& member) { return member.summary; })
      .def_ro("digest", &Member::digest, "Of the artifact with its modules.")
      .def_ro("size", &Member::size, "Likewise.")
      .def_ro("metadata", &Member::metadata, "The user's, as JSON; None where there is none.")
      .def_ro("own_metadata", &Member::own_metadata, "Whether it was given to the archive, not to the artifact.")
      .def_prop_ro("place", [](const Member& member) { return member.place; })
      .def_ro("modules", &Member::modules, "Position, size and digest of its module, of its VJP's, and so on.");
}

// The end of an archive has a constant size.

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

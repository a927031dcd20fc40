// An index is hostile until it is checked; each part is checked when it is first needed.
#include "wire/archive/index.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <string>

#include "wire/archive/limits.h"
#include "wire/archive/member.h"
#include "wire/archive/weights.h"
#include "wire/artifact/layout.h"
#include "wire/base/text.h"
#include "wire/base/unaligned.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

const Path index_path{nullptr, "index"};
constexpr const char* advice = "; get another copy of the archive";

[[noreturn]] void refuse(const Path& path, std::string expected, std::string found) {
  throw Error(path, std::move(expected), std::move(found));
}

/// For a flat buffer with this many tables, and one vector of tables or strings.
template <class Root>
const Root& verified(std::span<const std::uint8_t> bytes, std::uint32_t tables, const Path& path) {
  flatbuffers::Verifier::Options options;
  options.max_depth = 4;
  options.max_tables = tables;
  options.check_alignment = true;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), options);
  if (bytes.size() < FLATBUFFERS_MIN_BUFFER_SIZE || bytes.size() >= max_buffer_size ||
      !verifier.VerifyBuffer<Root>(nullptr))
    refuse(path, "tables inside the index", "tables that reach beyond its end");
  return *flatbuffers::GetRoot<Root>(bytes.data());
}

std::size_t check_text(const flatbuffers::String* text, const Path& path, std::size_t most) {
  if (!text) return 0;
  if (text->size() > most) refuse(path, "at most " + std::to_string(most) + " bytes", std::to_string(text->size()));
  if (!is_utf8({text->Data(), text->size()})) refuse(path, "UTF-8", "bytes that are not");
  return text->size();
}

std::size_t check_texts(const schema::Member& member, const Path& path) {
  return check_text(member.fun_name(), {&path, "fun_name"}, max_index_text_size) +
         check_text(member.jax_version(), {&path, "jax_version"}, max_index_list_size) +
         check_text(member.writer(), {&path, "writer"}, max_index_list_size) +
         check_text(member.platforms(), {&path, "platforms"}, max_index_list_size) +
         check_text(member.arguments(), {&path, "arguments"}, max_index_list_size) +
         check_text(member.results(), {&path, "results"}, max_index_list_size) +
         check_text(member.metadata(), {&path, "metadata"}, max_index_text_size);
}

bool has_module(const schema::Member& member, const schema::Module& module) {
  return member.modules() && std::ranges::any_of(*member.modules(), [&](const schema::Module* own) {
           return own->position() == module.position() && own->size() == module.size();
         });
}

std::string zip_name(const schema::Member& member) {
  const std::string name = member.name()->str();
  return member.place()->apart() ? std::string(apart_folder) + name : name;
}

}  // namespace

ArchiveIndex::ArchiveIndex(std::span<const std::uint8_t> index, std::span<const std::uint8_t> root,
                           const Digest& root_digest, std::uint64_t end, Fetch fetch)
    : ArchiveIndex({{end, index}}, root, root_digest, end, index.size(), std::move(fetch)) {}

ArchiveIndex::ArchiveIndex(std::vector<Part> parts, std::span<const std::uint8_t> root, const Digest& root_digest,
                           std::uint64_t end, std::uint64_t size, Fetch fetch)
    : parts_(std::move(parts)), end_(end), limit_(end + size), fetch_(std::move(fetch)) {
  if (digest(root) != root_digest)
    refuse(index_path, "the bytes as they were written", std::string("different bytes") + advice);
  root_ = &verified<schema::Index>(root, 1, index_path);
  if (root_->end() != end || limit_ < end)
    refuse({&index_path, "end"}, "members that end at byte " + std::to_string(end), std::to_string(root_->end()));
  check_text(root_->writer(), {&index_path, "writer"}, max_index_list_size);
  if (root_->pages())
    refuse({&index_path, "pages"}, "an index of two levels",
           "one of three, as appends wrote it up to 2026-11-28: let the jaxexp that wrote the archive compact it");
  size_ = is_of_changes() ? root_->moved_members() : root_->member_count();
  block_count_ = is_of_changes() ? root_->moved()->size() : root_->blocks()->size();
  if (size_ > max_members || block_count_ > size_ || size_ > std::uint64_t{block_count_} * members_in_block)
    refuse({&index_path, "member_count"}, "as many members as are in its blocks", std::to_string(size_));
  checked_ = std::make_unique<std::atomic<bool>[]>(block_count_);
}

std::optional<std::uint32_t> ArchiveIndex::find(std::string_view name) const {
  const std::uint32_t found = lower_bound(name);
  return found < size() && member(found).name()->string_view() == name ? std::optional(found) : std::nullopt;
}

std::uint32_t ArchiveIndex::lower_bound(std::string_view name) const {
  if (block_count() == 0 || name < first_name(0)) return 0;
  const std::uint32_t found = block_of(name);
  const auto& members = *block(found).members();
  const auto member = std::partition_point(members.begin(), members.end(), [&](const schema::Member* member) {
    return member->name()->string_view() < name;
  });
  return first_member(found) + static_cast<std::uint32_t>(member - members.begin());
}

const schema::Member& ArchiveIndex::member(std::uint32_t number) const {
  const std::uint32_t found = block_of(number);
  return *block(found).members()->Get(number - first_member(found));
}

std::vector<ZipMember> ArchiveIndex::files(std::uint64_t section) const {
  const std::uint64_t begin = is_of_changes() ? section : 0;
  std::vector<ZipMember> files;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const schema::Member& member = this->member(i);
    const schema::Place& place = *member.place();
    if (const std::uint64_t at = place.position() - place.header(); !place.shared() && at >= begin)
      files.push_back({zip_name(member), place.size(), place.crc32(), at});
  }
  if (const schema::ArchiveWeights* const found = weights()) append_zip_members(files, files_of(*found), begin);
  return files;
}

const schema::ArchiveWeights* ArchiveIndex::weights() const {
  const schema::FilePartPlace place = weights_place();
  if (place.size() == 0) return nullptr;
  const Path path{&index_path, "weights"};
  if (!weights_checked_.load(std::memory_order_acquire)) {
    check_archive_weights(part(place.position(), place.size(), stored(place.digest()), path), end_);
    weights_checked_.store(true, std::memory_order_release);
  }
  return flatbuffers::GetRoot<schema::ArchiveWeights>(at(place.position(), place.size(), path).data());
}

schema::FilePartPlace ArchiveIndex::weights_place() const {
  if (is_of_changes()) return root_->moved_weights() ? *root_->moved_weights() : schema::FilePartPlace();
  const schema::PartPlace* const place = root_->weights();
  return place ? schema::FilePartPlace(place->digest(), end_ + place->position(), place->size())
               : schema::FilePartPlace();
}

void ArchiveIndex::check_header(std::uint32_t number, std::span<const std::uint8_t> header) const {
  const schema::Member& member = this->member(number);
  const schema::Place& place = *member.place();
  const std::string expected =
      zip_local_header(zip_name(member), place.size(), place.crc32(), place.position() - place.header());
  if (!std::ranges::equal(header, std::span(reinterpret_cast<const std::uint8_t*>(expected.data()), expected.size())))
    refuse({&index_path, "members", number}, "its header in the ZIP file", std::string("a different header") + advice);
}

void ArchiveIndex::check() const {
  if (all_checked_.load(std::memory_order_acquire)) return;
  check_names();
  weights();
  check_places();
  all_checked_.store(true, std::memory_order_release);
}

void ArchiveIndex::check_names() const {
  if (names_checked_.load(std::memory_order_acquire)) return;
  for (std::uint32_t i = 0; i < block_count(); ++i) block(i);  // also one in which no member is looked up
  check_names(0, size());
  names_checked_.store(true, std::memory_order_release);
}

void ArchiveIndex::check_names(std::uint32_t first, std::uint32_t end) const {
  // In their order, names with a common beginning follow each other. So `beginnings` has all names that the one at hand
  // begins with, and there are at most as many as it has bytes.
  std::vector<std::string_view> beginnings;
  for (std::uint32_t i = first; i < end; ++i) {
    const std::string_view name = member(i).name()->string_view();
    while (!beginnings.empty() && !name.starts_with(beginnings.back())) beginnings.pop_back();
    for (const std::string_view beginning : beginnings)
      if (name[beginning.size()] == '/')
        refuse({&index_path, "members", i}, "names that are files or folders",
               "'" + escaped(shortened(beginning)) + "', which is both");
    beginnings.push_back(name);
  }
}

const schema::Block& ArchiveIndex::block(std::uint32_t number) const {
  // Several threads may check it at the same time; they find the same.
  if (!checked_[number].load(std::memory_order_acquire)) {
    check_block(number);
    const std::uint32_t size = listed(number).size;
    // Otherwise many blocks could be one.
    if (!checked_[number].exchange(true, std::memory_order_acq_rel) && (checked_bytes_ += size) > limit_)
      refuse({&index_path, "blocks", number}, "blocks that fit into the file together",
             "blocks that are larger than it");
  }
  const Listed place = listed(number);
  return *flatbuffers::GetRoot<schema::Block>(at(place.position, place.size, {&index_path, "blocks", number}).data());
}

const schema::Block& ArchiveIndex::check_block(std::uint32_t number) const {
  const Path path{&index_path, "blocks", number};
  const Listed place = listed(number);
  const auto bytes = part(place.position, place.size, stored(place.digest), path);
  const std::uint32_t first = first_member(number), end = first_member(number + 1);
  if ((number == 0 && first != 0) || end <= first || end - first > members_in_block)
    refuse(path, "1 to " + std::to_string(members_in_block) + " members",
           "from " + std::to_string(first) + " to " + std::to_string(end));
  const schema::Block& block = verified<schema::Block>(bytes, 1 + end - first, path);
  if (block.members()->size() != end - first)
    refuse(path, std::to_string(end - first) + " members", std::to_string(block.members()->size()));
  std::string_view previous;
  std::size_t texts = 0;
  for (std::uint32_t i = 0; i < block.members()->size(); ++i) {
    const schema::Member& member = *block.members()->Get(i);
    texts += check_member(member, previous, first + i);
    previous = member.name()->string_view();
  }
  if (const std::size_t most = max_text_per_block_byte * bytes.size(); texts > most)
    refuse(path, "texts of at most " + std::to_string(most) + " bytes in total", std::to_string(texts));
  if (first_name(number) != block.members()->Get(0)->name()->string_view() ||
      (number + 1 < block_count() && first_name(number + 1) <= previous))
    refuse(path, "names in ascending order over all blocks", "names out of order");
  return block;
}

std::span<const std::uint8_t> ArchiveIndex::at(std::uint64_t position, std::uint64_t size, const Path& path) const {
  check_within(position, size, path);
  const auto behind = std::ranges::upper_bound(parts_, position, {}, &Part::position);
  if (behind != parts_.begin()) {
    const auto& [start, bytes] = behind[-1];
    if (position - start <= bytes.size() && size <= bytes.size() - (position - start))
      return bytes.subspan(static_cast<std::size_t>(position - start), static_cast<std::size_t>(size));
  }
  refuse(path, "bytes that were read", "bytes outside of them");
}

void ArchiveIndex::check_within(std::uint64_t position, std::uint64_t size, const Path& path) const {
  if (position > limit_ || size > limit_ - position)
    refuse(path, "a part of the file in front of the index's end", "one that leads out of it");
}

std::span<const std::uint8_t> ArchiveIndex::part(std::uint64_t position, std::uint32_t size, const Digest& expected,
                                                 const Path& path) const {
  const auto bytes = at(position, size, path);
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) != 0)
    refuse(path, "a part at a multiple of eight bytes", "one at " + std::to_string(position));
  if (fetch_) fetch_(bytes);
  if (digest(bytes) != expected)
    refuse(path, "the bytes as they were written", std::string("different bytes") + advice);
  return bytes;
}

std::size_t ArchiveIndex::check_member(const schema::Member& member, std::string_view previous,
                                       std::uint32_t number) const {
  const Path path{&index_path, "members", number};
  const std::string_view name = member.name()->string_view();
  if (const std::string wrong = wrong_with_name(name); !wrong.empty())
    refuse({&path, "name"}, "a relative path of visible characters", "'" + escaped(shortened(name)) + "': " + wrong);
  if (!previous.empty() && previous >= name)
    refuse({&path, "name"}, "names in ascending order",
           "'" + escaped(shortened(name)) + "' behind '" + escaped(shortened(previous)) + "'");
  const schema::Place& place = *member.place();
  if (place.position() % member_alignment != 0 || place.position() > end_ || place.size() > end_ - place.position() ||
      place.header() > place.position())
    refuse({&path, "place"}, "bytes in front of the index, at a multiple of " + std::to_string(member_alignment),
           std::to_string(place.size()) + " at " + std::to_string(place.position()));
  constexpr std::size_t fixed_header = 30;
  if (!place.shared() && place.header() < fixed_header + zip_name(member).size())
    refuse({&path, "place"}, "a ZIP header in front of the bytes", std::to_string(place.header()) + " bytes");
  // FlatBuffers' verifier does not check this.
  if (Values::length(member.modules()) != 0 &&
      reinterpret_cast<std::uintptr_t>(member.modules()->Data()) % alignof(schema::Module) != 0)
    refuse({&path, "modules"}, "a vector at a multiple of eight bytes", "one elsewhere");
  const std::uint32_t modules = Values::length(member.modules());
  if (modules > max_vjp_order + 1 || (place.apart() && modules == 0))
    refuse({&path, "modules"}, "the modules of the function and of its VJPs", std::to_string(modules));
  for (std::uint32_t i = 0; i < modules; ++i) {
    const schema::Module& module = *member.modules()->Get(i);
    if (module.position() > end_ || module.size() > end_ - module.position())
      refuse({&path, "modules", i}, "bytes in front of the index",
             std::to_string(module.size()) + " at " + std::to_string(module.position()));
  }
  if (!place.apart() && member.size() != place.size())
    refuse({&path, "size"}, "the size of its bytes", std::to_string(member.size()));
  return check_texts(member, path);
}

void ArchiveIndex::check_places() const {
  struct Extent {
    std::uint64_t start, position, end;
    std::uint32_t number;
    bool apart;
  };
  std::vector<Extent> extents;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const schema::Place& place = *member(i).place();
    const std::uint64_t position = place.position();
    if (!place.shared())
      extents.push_back({position - place.header(), position, position + place.size(), i, place.apart()});
  }
  std::ranges::sort(extents, {}, &Extent::start);
  for (std::size_t i = 1; i < extents.size(); ++i)
    if (extents[i].start < extents[i - 1].end)  // none is empty: each has a header
      refuse({&index_path, "members", extents[i].number}, "bytes of its own",
             "bytes that also belong to '" + escaped(shortened(member(extents[i - 1].number).name()->string_view())) +
                 "'");
  if (const schema::ArchiveWeights* const found = weights())
    for (std::uint32_t i = 0; i < found->files()->size(); ++i) {
      const schema::WeightsFile& file = *found->files()->Get(i);
      const auto behind = std::ranges::lower_bound(extents, file.position() + file.size(), {}, &Extent::start);
      if (behind != extents.begin() && behind[-1].end > file.position() - file.header())
        refuse(
            {&index_path, "weights.files", i}, "bytes of its own",
            "bytes that also belong to '" + escaped(shortened(member(behind[-1].number).name()->string_view())) + "'");
    }
  // The member whose bytes hold a position.
  const auto holder = [&](std::uint64_t position) -> const Extent* {
    const auto behind = std::ranges::upper_bound(extents, position, {}, &Extent::position);
    return behind == extents.begin() ? nullptr : &behind[-1];
  };
  for (std::uint32_t i = 0; i < size(); ++i) {
    const schema::Member& member = this->member(i);
    const schema::Place& place = *member.place();
    const Path path{&index_path, "members", i};
    if (place.shared()) {
      const Extent* const owner = holder(place.position());
      if (!owner || owner->position != place.position() || owner->end - owner->position != place.size() ||
          owner->apart != place.apart())
        refuse({&path, "place"}, "exactly the bytes of another member", "different bytes");
    }
    for (std::uint32_t j = 0; j < Values::length(member.modules()); ++j) {
      const schema::Module& module = *member.modules()->Get(j);
      const auto is_within = [&](std::uint64_t start, std::uint64_t end) {
        return module.position() >= start && module.position() <= end && module.size() <= end - module.position();
      };
      if (!place.apart() && is_within(place.position(), place.position() + place.size())) continue;
      // A module that is apart is one of a member's own: so there are no more of them than members have.
      const Extent* const owner = holder(module.position());
      if (!owner || owner->apart || !is_within(owner->position, owner->end) ||
          !has_module(this->member(owner->number), module))
        refuse({&path, "modules", j}, "a module inside of a member", "bytes elsewhere");
    }
  }
}

std::uint32_t ArchiveIndex::block_of(std::uint32_t member) const {
  if (member >= size())
    refuse({&index_path, "members", member}, "a number below " + std::to_string(size()), std::to_string(member));
  const auto blocks = std::views::iota(std::uint32_t{1}, block_count());
  const auto behind = std::ranges::partition_point(blocks, [&](std::uint32_t i) { return first_member(i) <= member; });
  const auto found = static_cast<std::uint32_t>(behind - blocks.begin());
  // The search finds the right block if all are in order. A block's own check compares it with its neighbours.
  if (first_member(found) > member || first_member(found + 1) <= member)
    refuse({&index_path, "blocks", found}, "numbers of members in ascending order", "numbers out of order");
  return found;
}

std::uint32_t ArchiveIndex::block_of(std::string_view name) const {
  // The last one whose first name is not behind the one that is looked for.
  const auto blocks = std::views::iota(std::uint32_t{1}, block_count());
  const auto behind = std::ranges::partition_point(blocks, [&](std::uint32_t i) { return first_name(i) <= name; });
  return static_cast<std::uint32_t>(behind - blocks.begin());
}

ArchiveIndex::Listed ArchiveIndex::listed(std::uint32_t block) const {
  // They may be at any address.
  if (is_of_changes()) {
    const auto place =
        load<schema::MovedBlock>(root_->moved()->Data() + std::size_t{block} * sizeof(schema::MovedBlock));
    return {place.digest(),       place.position(),      place.size(),
            place.first_member(), place.name_position(), place.name_size()};
  }
  const auto place =
      load<schema::BlockPlace>(root_->blocks()->Data() + std::size_t{block} * sizeof(schema::BlockPlace));
  return {place.digest(),       end_ + place.position(), place.size(),
          place.first_member(), place.name_position(),   place.name_size()};
}

std::uint32_t ArchiveIndex::first_member(std::uint32_t block) const {
  return block == block_count() ? size() : listed(block).first_member;
}

std::string_view ArchiveIndex::first_name(std::uint32_t block) const {
  const Listed place = listed(block);
  const auto& names = *root_->names();
  if (place.name_position > names.size() || place.name_size > names.size() - place.name_position)
    refuse({&index_path, "blocks", block}, "a name inside the index", "one that leads out of it");
  return {reinterpret_cast<const char*>(names.data()) + place.name_position, place.name_size};
}

ArchiveIndex::BlockPlace ArchiveIndex::block_place(std::uint32_t block) const {
  const Listed place = listed(block);
  return {stored(place.digest), place.position, place.size, first_member(block + 1) - first_member(block),
          first_name(block)};
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> ArchiveIndex::part_places() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  std::uint64_t size = 0;
  for (std::uint32_t i = 0; i < block_count(); ++i) {
    const Listed place = listed(i);
    check_within(place.position, place.size, {&index_path, "blocks", i});
    places.emplace_back(place.position, place.size);
    size += place.size;
    if (size > limit_)
      refuse({&index_path, "blocks"}, "blocks that fit into the file together", "blocks that are larger than it");
  }
  if (const schema::FilePartPlace weights = weights_place(); weights.size() != 0) {
    check_within(weights.position(), weights.size(), {&index_path, "weights"});
    places.emplace_back(weights.position(), weights.size());
  }
  return places;
}

// Places in a hostile root may overlap, but all of them together are no larger than the file.

namespace {

constexpr std::uint64_t word = sizeof(std::uint64_t);

}  // namespace

void IndexParts::read(const Fetch& fetch, std::span<const std::uint8_t> root, const Digest& root_digest,
                      std::uint64_t end, std::uint64_t size) {
  const Places places = ArchiveIndex({}, root, root_digest, end, size).part_places();
  auto place = places.begin();
  fetch(places, [&](std::span<const std::uint8_t> bytes) {
    Piece piece{place->first, bytes.size(), std::vector<std::uint64_t>(bytes.size() / word + 2)};
    if (!bytes.empty())
      std::memcpy(reinterpret_cast<std::uint8_t*>(piece.words.data()) + piece.position % word, bytes.data(),
                  bytes.size());
    pieces_.push_back(std::move(piece));
    ++place;
  });
}

std::vector<ArchiveIndex::Part> IndexParts::parts() const {
  std::vector<ArchiveIndex::Part> parts;
  for (const auto& [position, size, words] : pieces_)
    parts.push_back({position, {reinterpret_cast<const std::uint8_t*>(words.data()) + position % word, size}});
  // Of those at one position, the last one is found, which is the largest.
  std::ranges::sort(parts, {}, [](const auto& part) { return std::pair(part.position, part.bytes.size()); });
  return parts;
}

}  // namespace jaxexp::wire

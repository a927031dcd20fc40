// An index is hostile until it is checked; each part is checked when it is first needed.
#include "wire/archive/index.h"

#include <algorithm>
#include <ranges>
#include <string>
#include <vector>

#include "wire/archive/limits.h"
#include "wire/archive/member_name.h"
#include "wire/archive/weights.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/utf8.h"
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
    refuse(path, "tables inside the index", "some that lead out of it");
  return *flatbuffers::GetRoot<Root>(bytes.data());
}

/// Returns its size.
std::size_t check_text(const flatbuffers::String* text, const Path& path, std::size_t most) {
  if (!text) return 0;
  if (text->size() > most) refuse(path, "at most " + std::to_string(most) + " bytes", std::to_string(text->size()));
  if (!is_utf8({text->Data(), text->size()})) refuse(path, "UTF-8", "bytes that are not");
  return text->size();
}

/// Returns the size of all texts.
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
                           const Digest& root_digest, std::uint64_t end, const FileBytes* file)
    : index_(index), end_(end), file_(file) {
  if (digest(root) != root_digest) refuse(index_path, "the bytes as they were written", std::string("others") + advice);
  root_ = &verified<schema::Index>(root, 1, index_path);
  const std::uint32_t blocks = root_->blocks()->size();
  if (size() > max_members || blocks > size() || size() > std::uint64_t{blocks} * members_in_block)
    refuse({&index_path, "member_count"}, "as many members as are in its blocks", std::to_string(size()));
  if (root_->end() != end)
    refuse({&index_path, "end"}, "members that end at byte " + std::to_string(end), std::to_string(root_->end()));
  check_text(root_->writer(), {&index_path, "writer"}, max_index_list_size);
  checked_ = std::make_unique<std::atomic<bool>[]>(blocks);
}

std::optional<std::uint32_t> ArchiveIndex::find(std::string_view name) const {
  // The last block whose first name is not behind the one that is looked for.
  const auto blocks = std::views::iota(std::uint32_t{0}, root_->blocks()->size());
  const auto behind = std::ranges::partition_point(blocks, [&](std::uint32_t i) { return first_name(i) <= name; });
  if (behind == blocks.begin()) return std::nullopt;
  const std::uint32_t found = *(behind - 1);
  const auto& members = *block(found).members();
  const auto member = std::partition_point(members.begin(), members.end(), [&](const schema::Member* member) {
    return member->name()->string_view() < name;
  });
  if (member == members.end() || member->name()->string_view() != name) return std::nullopt;
  return first_member(found) + static_cast<std::uint32_t>(member - members.begin());
}

const schema::Member& ArchiveIndex::member(std::uint32_t number) const {
  const std::uint32_t found = block_of(number);
  return *block(found).members()->Get(number - first_member(found));
}

std::vector<ZipMember> ArchiveIndex::files() const {
  std::vector<ZipMember> files;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const schema::Member& member = this->member(i);
    const schema::Place& place = *member.place();
    if (!place.shared())
      files.push_back({zip_name(member), place.size(), place.crc32(), place.position() - place.header()});
  }
  if (const schema::ArchiveWeights* const found = weights()) append_zip_members(files, files_of(*found));
  return files;
}

const schema::ArchiveWeights* ArchiveIndex::weights() const {
  const schema::PartPlace* const place = root_->weights();
  if (!place) return nullptr;
  if (!weights_checked_.load(std::memory_order_acquire)) {
    check_archive_weights(part(place->position(), place->size(), stored(place->digest()), {&index_path, "weights"}),
                          end_);
    weights_checked_.store(true, std::memory_order_release);
  }
  return flatbuffers::GetRoot<schema::ArchiveWeights>(index_.data() + place->position());
}

void ArchiveIndex::check_header(std::uint32_t number, std::span<const std::uint8_t> header) const {
  const schema::Member& member = this->member(number);
  const schema::Place& place = *member.place();
  const std::string expected =
      zip_local_header(zip_name(member), place.size(), place.crc32(), place.position() - place.header());
  if (!std::ranges::equal(header, std::span(reinterpret_cast<const std::uint8_t*>(expected.data()), expected.size())))
    refuse({&index_path, "members", number}, "its header in the ZIP file", std::string("another") + advice);
}

void ArchiveIndex::check() const {
  if (all_checked_.load(std::memory_order_acquire)) return;
  for (std::uint32_t i = 0; i < root_->blocks()->size(); ++i) block(i);  // also one in which no member is looked up
  check_names();
  weights();
  check_places();
  all_checked_.store(true, std::memory_order_release);
}

void ArchiveIndex::check_names() const {
  if (names_checked_.load(std::memory_order_acquire)) return;
  // In their order, names with a common beginning follow each other. So `beginnings` has all names that the one at hand
  // begins with, and there are at most as many as it has bytes.
  std::vector<std::string_view> beginnings;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const std::string_view name = member(i).name()->string_view();
    while (!beginnings.empty() && !name.starts_with(beginnings.back())) beginnings.pop_back();
    for (const std::string_view beginning : beginnings)
      if (name[beginning.size()] == '/')
        refuse({&index_path, "members", i}, "names that are files or folders",
               "'" + escaped(shortened(beginning)) + "', which is both");
    beginnings.push_back(name);
  }
  names_checked_.store(true, std::memory_order_release);
}

const schema::Block& ArchiveIndex::block(std::uint32_t number) const {
  // Several threads may check it at the same time; they find the same.
  if (!checked_[number].load(std::memory_order_acquire)) {
    check_block(number);
    checked_[number].store(true, std::memory_order_release);
  }
  return *flatbuffers::GetRoot<schema::Block>(index_.data() + root_->blocks()->Get(number)->position());
}

const schema::Block& ArchiveIndex::check_block(std::uint32_t number) const {
  const Path path{&index_path, "blocks", number};
  const schema::BlockPlace& place = *root_->blocks()->Get(number);
  const auto bytes = part(place.position(), place.size(), stored(place.digest()), path);
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
      (number + 1 < root_->blocks()->size() && first_name(number + 1) <= previous))
    refuse(path, "names in ascending order over all blocks", "others");
  return block;
}

std::span<const std::uint8_t> ArchiveIndex::part(std::uint32_t position, std::uint32_t size, const Digest& expected,
                                                 const Path& path) const {
  if (position % 8 != 0 || position > index_.size() || size > index_.size() - position)
    refuse(path, "a block inside the index", "one that leads out of it");
  const auto bytes = index_.subspan(position, size);
  if (file_) file_->fetch(bytes);
  if (digest(bytes) != expected) refuse(path, "the bytes as they were written", std::string("others") + advice);
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
      refuse(
          {&index_path, "members", extents[i].number}, "bytes of its own",
          "some that belong to '" + escaped(shortened(member(extents[i - 1].number).name()->string_view())) + "', too");
  if (const schema::ArchiveWeights* const found = weights())
    for (std::uint32_t i = 0; i < found->files()->size(); ++i) {
      const schema::WeightsFile& file = *found->files()->Get(i);
      const auto behind = std::ranges::lower_bound(extents, file.position() + file.size(), {}, &Extent::start);
      if (behind != extents.begin() && behind[-1].end > file.position() - file.header())
        refuse(
            {&index_path, "weights.files", i}, "bytes of its own",
            "some that belong to '" + escaped(shortened(member(behind[-1].number).name()->string_view())) + "', too");
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
        refuse({&path, "place"}, "the bytes of another member", "others");
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
        refuse({&path, "modules", j}, "a module of a member that has its modules", "other bytes");
    }
  }
}

std::uint32_t ArchiveIndex::block_of(std::uint32_t member) const {
  if (member >= size())
    refuse({&index_path, "members", member}, "a number below " + std::to_string(size()), std::to_string(member));
  const auto& blocks = *root_->blocks();
  const auto behind = std::partition_point(blocks.begin() + 1, blocks.end(), [&](const schema::BlockPlace* block) {
    return block->first_member() <= member;
  });
  const auto found = static_cast<std::uint32_t>(behind - blocks.begin()) - 1;
  // The search finds the right block if all are in order. A block's own check compares it with its neighbours.
  if (first_member(found) > member || first_member(found + 1) <= member)
    refuse({&index_path, "blocks", found}, "numbers of members in ascending order", "others");
  return found;
}

std::uint32_t ArchiveIndex::first_member(std::uint32_t block) const {
  return block == root_->blocks()->size() ? size() : root_->blocks()->Get(block)->first_member();
}

std::string_view ArchiveIndex::first_name(std::uint32_t block) const {
  const schema::BlockPlace& place = *root_->blocks()->Get(block);
  const auto& names = *root_->names();
  if (place.name_position() > names.size() || place.name_size() > names.size() - place.name_position())
    refuse({&index_path, "blocks", block}, "a name inside the root", "one that leads out of it");
  return {reinterpret_cast<const char*>(names.data()) + place.name_position(), place.name_size()};
}

}  // namespace jaxexp::wire

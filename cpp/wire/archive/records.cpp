// Collects what an index will say, and lays it out.
#include "wire/archive/records.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "wire/archive/limits.h"
#include "wire/archive/member_name.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/utf8.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

void check_text(const Text& text, const char* what, std::size_t most = max_index_text_size) {
  if (text.size() > most)
    throw std::invalid_argument(std::string(what) + " of an archive's member has to be at most " +
                                std::to_string(most) + " bytes, found " + std::to_string(text.size()));
}

}  // namespace

void ArchiveRecords::take(const ArchiveIndex& index) {
  index.check();
  Member::Texts texts;
  for (std::uint32_t i = 0; i < index.size(); ++i) {
    const schema::Member& member = index.member(i);
    const auto place = members_.emplace_hint(members_.end(), member.name()->str(), Member::of(member, texts));
    know(place->first, place->second);
  }
  size_ = members_.size();
  if (const schema::ArchiveWeights* const weights = index.weights()) weights_.take(*weights);
}

void ArchiveRecords::build_on(const ArchiveIndex& index, std::uint64_t root_position, std::uint32_t few) {
  if (index.size() <= few) return take(index);
  base_ = &index;
  few_ = few;
  base_root_position_ = root_position;
  size_ = index.size();
}

void ArchiveRecords::need_block(std::uint32_t block) {
  if (!needed_.insert(block).second) return;
  Member::Texts texts;
  for (std::uint32_t i = base_->first_member(block); i < base_->first_member(block + 1); ++i) {
    const schema::Member& member = base_->member(i);
    const auto place = members_.try_emplace(member.name()->str(), Member::of(member, texts)).first;
    know(place->first, place->second);
  }
}

void ArchiveRecords::need(std::string_view name) {
  if (base_) need_block(base_->block_of(name));
}

void ArchiveRecords::need_all() {
  if (!base_ || needed_.size() == base_->block_count()) return;
  base_->check();
  for (std::uint32_t block = 0; block < base_->block_count(); ++block) need_block(block);
}

const ArchiveRecords::Members& ArchiveRecords::members() {
  need_all();
  return members_;
}

const Member* ArchiveRecords::get(std::string_view name) {
  need(name);
  const auto found = members_.find(name);
  return found == members_.end() ? nullptr : &found->second;
}

ArchiveWeights& ArchiveRecords::weights() {
  if (base_ && !base_files_) {
    if (const schema::ArchiveWeights* const weights = base_->weights()) weights_.take(*weights);
    base_files_ = weights_.files().size();
  }
  return weights_;
}

void ArchiveRecords::check_name(std::string_view name) {
  if (const std::string wrong = wrong_with_name(name); !wrong.empty()) throw std::invalid_argument(wrong);
  if (get(name)) throw std::invalid_argument("the archive has a member of this name; remove it first");
  // No tool could extract both a file and a folder of one name.
  for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1))
    if (get(name.substr(0, slash)))
      throw std::invalid_argument("the archive has a member '" + std::string(name.substr(0, slash)) +
                                  "', which cannot be a folder, too");
  const std::string folder = std::string(name) + '/';
  need(folder);
  auto next = members_.lower_bound(folder);
  if (base_) {
    // The first name in the folder may begin a later block. Blocks that are not needed yet have no names in `members_`.
    const auto is_in_folder = [&](std::uint32_t block) {
      return block < base_->block_count() && base_->first_name(block).starts_with(folder);
    };
    for (std::uint32_t block = base_->block_of(folder) + 1;
         is_in_folder(block) && (next == members_.end() || next->first >= base_->first_name(block)); ++block) {
      need_block(block);
      next = members_.lower_bound(folder);
    }
  }
  if (next != members_.end() && next->first.starts_with(folder))
    throw std::invalid_argument("the archive has a member '" + next->first +
                                "', whose folder would have this name, too");
  if (size_ >= max_members)
    throw std::invalid_argument("an archive has at most " + std::to_string(max_members) + " members");
}

void ArchiveRecords::put(const std::string& name, Member member) {
  check_text(member.summary.fun_name, "the function's name");
  check_text(member.summary.platforms, "the list of platforms", max_index_list_size);
  check_text(member.summary.arguments, "the list of arguments", max_index_list_size);
  check_text(member.summary.results, "the list of results", max_index_list_size);
  check_text(member.summary.writer, "the list of releases", max_index_list_size);
  if (member.summary.jax_version) check_text(*member.summary.jax_version, "the release of JAX", max_index_list_size);
  if (member.metadata) check_text(*member.metadata, "the metadata");
  need(name);
  const auto [place, is_new] = members_.try_emplace(name);
  if (is_new)
    ++size_;
  else
    forget(place->first, place->second);
  place->second = std::move(member);
  know(place->first, place->second);
  if (base_) changed_.insert(base_->block_of(name));
}

void ArchiveRecords::remove(std::string_view name) {
  need(name);
  const auto place = members_.find(name);
  if (base_) changed_.insert(base_->block_of(name));
  forget(place->first, place->second);
  members_.erase(place);
  --size_;
}

template <class Change>
void ArchiveRecords::change(std::string_view name, const Member& member, const Change& change) {
  const Member::Place& place = member.place;
  if (place.shared) change(sharing_, std::pair(place.position, name));
  if (!place.shared || base_) change(contents_, std::tuple(member.digest, member.size, name));
  for (std::size_t i = 0; i < member.modules.size(); ++i) {
    const Member::Module& module = member.modules[i];
    if (place.apart) change(using_, std::pair(module.position, name));
    if (!place.apart && !place.shared)
      change(modules_, std::tuple(module.digest, module.size, name, i));
    else if (base_)
      change(used_modules_, std::tuple(module.digest, module.size, name, i));
  }
}

void ArchiveRecords::know(std::string_view name, const Member& member) {
  change(name, member, [](auto& set, const auto& key) { set.insert(key); });
}

void ArchiveRecords::forget(std::string_view name, const Member& member) {
  change(name, member, [](auto& set, const auto& key) { set.erase(key); });
}

const std::string* ArchiveRecords::of_content(const Digest& digest, std::uint32_t size) const {
  const auto found = contents_.lower_bound({digest, size, {}});
  if (found == contents_.end() || std::get<0>(*found) != digest || std::get<1>(*found) != size) return nullptr;
  return &members_.find(std::get<2>(*found))->first;
}

const Member::Module* ArchiveRecords::owned_module(const Digest& digest, std::uint32_t size) const {
  return module_in(modules_, digest, size);
}

const Member::Module* ArchiveRecords::module(const Digest& digest, std::uint32_t size) const {
  const Member::Module* const owned = owned_module(digest, size);
  return owned ? owned : module_in(used_modules_, digest, size);
}

const Member::Module* ArchiveRecords::module_in(const Modules& modules, const Digest& digest,
                                                std::uint32_t size) const {
  const auto found = modules.lower_bound({digest, size, {}, 0});
  if (found == modules.end() || std::get<0>(*found) != digest || std::get<1>(*found) != size) return nullptr;
  return &members_.find(std::get<2>(*found))->second.modules[std::get<3>(*found)];
}

namespace {

/// The names between two positions, each once, in ascending order.
std::vector<std::string> names_between(const std::set<std::pair<std::uint64_t, std::string_view>>& places,
                                       std::uint64_t begin, std::uint64_t end) {
  std::set<std::string_view> names;
  for (auto place = places.lower_bound({begin, {}}); place != places.end() && place->first < end; ++place)
    names.insert(place->second);
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<std::string> ArchiveRecords::sharing(std::uint64_t position) {
  need_all();
  return names_between(sharing_, position, position + 1);
}

std::vector<std::string> ArchiveRecords::using_modules(std::uint64_t begin, std::uint64_t end) {
  need_all();
  return names_between(using_, begin, end);
}

std::vector<ZipMember> ArchiveRecords::files(std::uint64_t section) {
  const std::uint64_t begin = writes_changes() ? section : 0;
  std::vector<ZipMember> files;
  for (const auto& [name, member] : members_) {
    const Member::Place& place = member.place;
    if (const std::uint64_t at = place.position - place.header; !place.shared && at >= begin)
      files.push_back({place.apart ? std::string(apart_folder) + name : name, place.size, place.crc32, at});
  }
  append_zip_members(files, weights_.files(), begin);
  return files;
}

/// The bytes of an index, part by part.
class ArchiveRecords::Writing {
 public:
  explicit Writing(std::uint64_t position) : position_(position) {}

  struct Block {
    Digest digest;
    std::uint64_t position;  // in the file
    std::uint32_t size, member_count;
    std::string first_name;
  };

  std::uint64_t position() const { return position_; }
  IndexBytes& index() { return index_; }

  /// Adds bytes at a multiple of eight, and returns their position in the index.
  std::uint32_t add(std::span<const std::uint8_t> part) {
    const std::size_t position = (index_.bytes.size() + 7) / 8 * 8;
    if (position + part.size() >= max_buffer_size)
      throw std::length_error("the index of an archive has to be smaller than 2 GiB: shorten names and metadata");
    index_.bytes.resize(position);
    index_.bytes.insert(index_.bytes.end(), part.begin(), part.end());
    return static_cast<std::uint32_t>(position);
  }

  /// Adds members as blocks of nearly the same size.
  void add_blocks(Members::const_iterator member, std::size_t count, std::vector<Block>& blocks) {
    for (std::size_t left = (count + members_in_block - 1) / members_in_block; left != 0; --left) {
      const std::size_t size = (count + left - 1) / left;
      blocks.push_back(add_block(member, static_cast<std::uint32_t>(size)));
      count -= size;
    }
  }

  void add_root(flatbuffers::FlatBufferBuilder& fbb, flatbuffers::Offset<schema::Index> root) {
    fbb.Finish(root);
    const std::span<const std::uint8_t> bytes(fbb.GetBufferPointer(), fbb.GetSize());
    index_.root_position = add(bytes);
    index_.root_size = bytes.size();
    index_.root_digest = digest(bytes);
  }

  std::string_view writer;

 private:
  /// Of the next members.
  Block add_block(Members::const_iterator& member, std::uint32_t count) {
    flatbuffers::FlatBufferBuilder fbb(1 << 15);
    const std::string& first_name = member->first;
    std::vector<flatbuffers::Offset<schema::Member>> tables;
    for (std::uint32_t i = 0; i < count; ++i, ++member) {
      const Member& m = member->second;
      std::vector<schema::Module> modules;
      for (const Member::Module& module : m.modules)
        modules.emplace_back(module.position, module.size, to_schema(module.digest));
      // Members that follow each other have much in common.
      const auto shared = [&](const std::string& text) { return fbb.CreateSharedString(text); };
      const auto optional = [&](const std::optional<Text>& text) {
        return text ? shared(*text) : flatbuffers::Offset<flatbuffers::String>();
      };
      const auto name = fbb.CreateString(member->first);
      const auto module_vector = fbb.CreateVectorOfStructs(modules);
      const Member::Summary& said = m.summary;
      const auto fun_name = shared(said.fun_name), jax_version = optional(said.jax_version),
                 wrote = shared(said.writer);
      const auto platforms = shared(said.platforms), arguments = shared(said.arguments), results = shared(said.results);
      const auto metadata = optional(m.metadata);
      const auto& [position, size, crc32, header, is_shared, is_apart] = m.place;
      const schema::Place place(position, size, crc32, header, is_shared, is_apart);
      const schema::Digest digest = to_schema(m.digest);
      tables.push_back(schema::CreateMember(fbb, name, &place, &digest, m.size, module_vector, fun_name, jax_version,
                                            wrote, platforms, said.nr_devices, arguments, said.argument_count, results,
                                            said.result_count, metadata, m.own_metadata));
    }
    fbb.Finish(schema::CreateBlock(fbb, fbb.CreateVector(tables)));
    const std::span<const std::uint8_t> bytes(fbb.GetBufferPointer(), fbb.GetSize());
    const std::uint32_t position = add(bytes);
    return {digest(bytes), position_ + position, static_cast<std::uint32_t>(bytes.size()), count, first_name};
  }

  const std::uint64_t position_;
  IndexBytes index_{};
};

IndexBytes ArchiveRecords::write(std::string_view writer, std::uint64_t end) {
  Writing writing(end);
  writing.writer = writer;
  if (writes_changes())
    write_changes(writing);
  else
    write_all(writing);
  return std::move(writing.index());
}

void ArchiveRecords::write_all(Writing& writing) {
  need_all();
  weights();
  std::vector<Writing::Block> blocks;
  auto member = members_.cbegin();
  for (std::size_t left = members_.size(); left != 0;) {
    const auto count = std::min<std::size_t>(left, members_in_block);
    writing.add_blocks(member, count, blocks);
    std::advance(member, count);
    left -= count;
  }
  std::vector<schema::BlockPlace> places;
  std::string names;
  std::uint32_t number = 0;
  for (const Writing::Block& block : blocks) {
    places.emplace_back(to_schema(block.digest), static_cast<std::uint32_t>(block.position - writing.position()),
                        block.size, number, static_cast<std::uint32_t>(names.size()),
                        static_cast<std::uint32_t>(block.first_name.size()));
    number += block.member_count;
    names += block.first_name;
  }
  schema::PartPlace weights;
  if (!weights_.empty()) {
    const flatbuffers::DetachedBuffer written = weights_.write();
    const std::span<const std::uint8_t> part(written.data(), written.size());
    weights = schema::PartPlace(to_schema(digest(part)), writing.add(part), static_cast<std::uint32_t>(part.size()));
  }
  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writing.writer.data(), writing.writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(places);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
  writing.add_root(fbb, schema::CreateIndex(fbb, written_by, number, writing.position(), place_vector, name_vector,
                                            weights_.empty() ? nullptr : &weights));
}

namespace {

/// A block with one member, whose name no reader accepts: those that do not know pages show it in an error.
flatbuffers::DetachedBuffer notice() {
  flatbuffers::FlatBufferBuilder fbb;
  const auto name = fbb.CreateString("/an append of a newer jaxexp: update jaxexp, or let the newer one compact it");
  const schema::Place place;
  const schema::Digest digest;
  const std::vector members = {schema::CreateMember(fbb, name, &place, &digest)};
  fbb.Finish(schema::CreateBlock(fbb, fbb.CreateVector(members)));
  return fbb.Release();
}

}  // namespace

void ArchiveRecords::write_changes(Writing& writing) {
  std::vector<schema::PagePlace> pages;
  std::string page_names;
  const auto add_page = [&](const schema::PagePlace& page, std::string_view name) {
    pages.emplace_back(page.digest(), page.blocks_position(), page.names_position(), page.index_position(),
                       page.block_count(), page.member_count(), page.names_size(),
                       static_cast<std::uint32_t>(page_names.size()), static_cast<std::uint32_t>(name.size()));
    page_names += name;
  };
  // The first of the members, all of them known, that are in a block or behind it.
  const auto first_in = [&](std::uint32_t block) {
    if (block == 0) return members_.cbegin();
    return block == base_->block_count() ? members_.cend() : members_.lower_bound(base_->first_name(block));
  };
  for (const ArchiveIndex::Run& run : base_->runs(base_root_position_)) {
    const std::uint32_t end = run.first_block + run.place.block_count();
    const auto changed = changed_.lower_bound(run.first_block);
    if (changed == changed_.end() || *changed >= end) {
      add_page(run.place, run.first_name);
      continue;
    }
    std::vector<Writing::Block> blocks;
    for (std::uint32_t i = run.first_block; i < end; ++i) {
      if (changed_.contains(i)) {
        const auto first = first_in(i);
        writing.add_blocks(first, static_cast<std::size_t>(std::distance(first, first_in(i + 1))), blocks);
      } else {
        const ArchiveIndex::BlockPlace place = base_->block_place(i);
        blocks.push_back(
            {place.digest, place.position, place.size, place.member_count, std::string(place.first_name)});
      }
    }
    auto block = blocks.begin();
    for (std::size_t left = (blocks.size() + blocks_in_page - 1) / blocks_in_page; left != 0; --left) {
      const std::size_t count = (static_cast<std::size_t>(blocks.end() - block) + left - 1) / left;
      std::vector<std::uint8_t> bytes;
      std::string names;
      std::uint32_t members = 0;
      const std::string& first_name = block->first_name;
      for (std::size_t i = 0; i < count; ++i, ++block) {
        const schema::PagedBlock place(to_schema(block->digest), block->position, block->size, members,
                                       static_cast<std::uint32_t>(names.size()),
                                       static_cast<std::uint32_t>(block->first_name.size()));
        const auto* const start = reinterpret_cast<const std::uint8_t*>(&place);
        bytes.insert(bytes.end(), start, start + sizeof place);
        names += block->first_name;
        members += block->member_count;
      }
      const std::size_t names_at = bytes.size();
      bytes.insert(bytes.end(), names.begin(), names.end());
      const std::uint64_t position = writing.position() + writing.add(bytes);
      add_page(schema::PagePlace(to_schema(digest(bytes)), position, position + names_at, 0,
                                 static_cast<std::uint32_t>(count), members, static_cast<std::uint32_t>(names.size()), 0,
                                 0),
               first_name);
    }
  }

  schema::FilePartPlace weights = base_->weights_place();
  if (base_files_ && weights_.files().size() != *base_files_) {
    const flatbuffers::DetachedBuffer written = weights_.write();
    const std::span<const std::uint8_t> part(written.data(), written.size());
    weights = schema::FilePartPlace(to_schema(digest(part)), writing.position() + writing.add(part),
                                    static_cast<std::uint32_t>(part.size()));
  }

  const flatbuffers::DetachedBuffer block = notice();
  const std::span<const std::uint8_t> notice(block.data(), block.size());
  const schema::BlockPlace place(to_schema(digest(notice)), writing.add(notice),
                                 static_cast<std::uint32_t>(notice.size()), 0, 0, 0);
  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writing.writer.data(), writing.writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(&place, 1);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(page_names.data()), page_names.size());
  const auto page_vector = fbb.CreateVectorOfStructs(pages);
  writing.add_root(fbb, schema::CreateIndex(fbb, written_by, 1, writing.position(), place_vector, name_vector, nullptr,
                                            page_vector, weights.size() == 0 ? nullptr : &weights));
}

}  // namespace jaxexp::wire

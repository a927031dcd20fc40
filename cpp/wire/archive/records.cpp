// Collects what an index will say, and lays it out.
#include "wire/archive/records.h"

#include <limits>
#include <new>
#include <stdexcept>

#include "wire/artifact/layout.h"
#include "wire/base/text.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {

// Records of members that have everything in common take a hundred bytes and their names.

namespace {

/// Metadata up to this size are in the record; longer ones may be those of many members, which share them.
constexpr std::size_t short_metadata = 64;

bool is_long(const Member& member) { return member.metadata && member.metadata->size() > short_metadata; }

}  // namespace

Summaries::Shared Summaries::shared(const Member::Summary& summary) {
  std::string all;
  for (const Text* const text :
       {&summary.fun_name, &summary.writer, &summary.platforms, &summary.arguments, &summary.results})
    all += text->str();
  const std::size_t hash = SeededHash()(all);
  const auto [begin, end] = known_.equal_range(hash);
  const auto found = std::find_if(begin, end, [&](const auto& known) { return *known.second == summary; });
  return found != end ? found->second : known_.emplace(hash, std::make_shared<const Member::Summary>(summary))->second;
}

Record::Record(std::string_view name, const Member& member, Summaries::Shared summary)
    : summary(std::move(summary)),
      digest(member.digest),
      place(member.place),
      size(member.size),
      own_metadata(member.own_metadata),
      long_metadata_(is_long(member) ? std::make_unique<const Text>(*member.metadata) : nullptr),
      name_size_(static_cast<std::uint32_t>(name.size())),
      module_count_(static_cast<std::uint32_t>(member.modules.size())),
      metadata_size_(static_cast<std::uint16_t>(member.metadata && !long_metadata_ ? member.metadata->size() : 0)),
      has_metadata_(member.metadata.has_value()) {
  std::uninitialized_copy(member.modules.begin(), member.modules.end(), module());
  char* const end = std::ranges::copy(name, const_cast<char*>(text())).out;
  if (metadata_size_ != 0) std::ranges::copy(member.metadata->str(), end);
}

Record::Owner Record::make(std::string_view name, const Member& member, Summaries& summaries) {
  static_assert(sizeof(Record) % alignof(Member::Module) == 0 && alignof(Record) >= alignof(Member::Module));
  auto shared = summaries.shared(member.summary);
  const std::size_t behind = member.modules.size() * sizeof(Member::Module) + name.size() +
                             (member.metadata && !is_long(member) ? member.metadata->size() : 0);
  void* const memory = ::operator new(sizeof(Record) + behind);
  try {
    return Owner(new (memory) Record(name, member, std::move(shared)));
  } catch (...) {
    ::operator delete(memory);
    throw;
  }
}

void Record::Deleter::operator()(Record* record) const {
  record->~Record();
  ::operator delete(record);
}

Member Record::member() const {
  const auto said = metadata();
  return {.summary = *summary,
          .digest = digest,
          .size = size,
          .metadata = long_metadata_ ? std::optional(*long_metadata_)
                                     : (said ? std::optional<Text>(std::string(*said)) : std::nullopt),
          .own_metadata = own_metadata,
          .place = place,
          .modules = {modules().begin(), modules().end()}};
}

namespace {

void check_text(const Text& text, const char* what, std::size_t most = max_index_text_size) {
  if (text.size() > most)
    throw std::invalid_argument(std::string(what) + " of an archive's member has to be at most " +
                                std::to_string(most) + " bytes, found " + std::to_string(text.size()));
}

}  // namespace

void ArchiveRecords::take(const ArchiveIndex& index) {
  index.check();
  know(index, 0, index.size());
  size_ = index.size();
  if (const schema::ArchiveWeights* const weights = index.weights()) weights_.take(*weights);
}

void ArchiveRecords::build_on(const ArchiveIndex& index, std::uint32_t few) {
  if (index.size() <= few) return take(index);
  base_ = &index;
  few_ = few;
  size_ = index.size();
}

void ArchiveRecords::need_block(std::uint32_t block) {
  if (needed_.contains(block)) return;
  const std::uint32_t first = base_->first_member(block), end = base_->first_member(block + 1);
  base_->member(first);  // throws where the block is damaged
  needed_.insert(block);
  is_whole_ = false;
  know(*base_, first, end);
  is_whole_ = true;
}

void ArchiveRecords::need(std::string_view name) {
  if (base_) need_block(base_->block_of(name));
}

void ArchiveRecords::need_all() {
  if (!base_ || needed_.size() == base_->block_count()) return;
  base_->check();
  for (std::uint32_t block = 0; block < base_->block_count(); ++block) need_block(block);
}

std::vector<std::string_view> ArchiveRecords::names() {
  need_all();
  std::vector<std::string_view> names;
  for (auto place = members_.begin(); place != members_.end(); ++place) names.push_back((*place)->name());
  return names;
}

const Record* ArchiveRecords::known(std::string_view name) const {
  const auto place = members_.lower_bound(name);
  return place != members_.end() && (*place)->name() == name ? (*place).get() : nullptr;
}

const Record* ArchiveRecords::record(std::string_view name) {
  need(name);
  return known(name);
}

std::optional<Member> ArchiveRecords::get(std::string_view name) {
  const Record* const found = record(name);
  return found ? std::optional(found->member()) : std::nullopt;
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
  if (contains(name)) throw std::invalid_argument("the archive has a member of this name; remove it first");
  // No tool could extract both a file and a folder of one name.
  for (std::size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/', slash + 1))
    if (contains(name.substr(0, slash)))
      throw std::invalid_argument("the archive has a member '" + std::string(name.substr(0, slash)) +
                                  "', which cannot be a folder, too");
  const std::string folder = std::string(name) + '/';
  need(folder);
  auto next = members_.lower_bound(std::string_view(folder));
  if (base_) {
    // The first name in the folder may begin a later block. Blocks that are not needed yet have no names in `members_`.
    const auto is_in_folder = [&](std::uint32_t block) {
      return block < base_->block_count() && base_->first_name(block).starts_with(folder);
    };
    for (std::uint32_t block = base_->block_of(folder) + 1;
         is_in_folder(block) && (next == members_.end() || (*next)->name() >= base_->first_name(block)); ++block) {
      need_block(block);
      next = members_.lower_bound(std::string_view(folder));
    }
  }
  if (next != members_.end() && (*next)->name().starts_with(folder))
    throw std::invalid_argument("the archive has a member '" + std::string((*next)->name()) +
                                "', whose folder would have this name, too");
  if (size_ >= max_members)
    throw std::invalid_argument("an archive has at most " + std::to_string(max_members) + " members");
}

void ArchiveRecords::put(std::string_view name, const Member& member) {
  check_text(member.summary.fun_name, "the function's name");
  check_text(member.summary.platforms, "the list of platforms", max_index_list_size);
  check_text(member.summary.arguments, "the list of arguments", max_index_list_size);
  check_text(member.summary.results, "the list of results", max_index_list_size);
  check_text(member.summary.writer, "the list of releases", max_index_list_size);
  if (member.summary.jax_version) check_text(*member.summary.jax_version, "the release of JAX", max_index_list_size);
  if (member.metadata) check_text(*member.metadata, "the metadata");
  if (contains(name)) remove(name);
  know(name, member);
  ++size_;
  if (base_) changed_.insert(base_->block_of(name));
}

void ArchiveRecords::remove(std::string_view name) {
  need(name);
  if (base_) changed_.insert(base_->block_of(name));
  forget(members_.lower_bound(name));
  --size_;
}

template <class Change>
void ArchiveRecords::change(const Record& record, const Change& change) {
  const Member::Place& place = record.place;
  const Known known{&record, 0};
  if (place.shared) change(sharing_, known);
  if (!place.shared || base_) change(contents_, known);
  for (std::uint32_t i = 0; i < record.modules().size(); ++i) {
    const Known module{&record, i};
    if (place.apart) change(using_, module);
    if (!place.apart && !place.shared)
      change(modules_, module);
    else if (base_)
      change(used_modules_, module);
  }
}

void ArchiveRecords::know(std::string_view name, const Member& member) {
  Record::Owner record = Record::make(name, member, summaries_);
  change(*record, [](auto& set, const Known& known) { set.insert(known); });
  members_.insert(std::move(record));
}

void ArchiveRecords::know(const ArchiveIndex& index, std::uint32_t first, std::uint32_t end) {
  Member::Texts texts;
  for (std::uint32_t i = first; i < end; ++i) {
    const schema::Member& member = index.member(i);
    know(member.name()->string_view(), Member::of(member, texts));
  }
}

void ArchiveRecords::forget(const Members::Iterator& place) {
  change(**place, [](auto& set, const Known& known) { set.take(set.lower_bound(known)); });
  members_.take(place);
}

std::optional<std::string_view> ArchiveRecords::of_content(const Digest& digest, std::uint32_t size) const {
  const auto found = contents_.lower_bound(Content(digest, size));
  return found != contents_.end() && content(*found) == Content(digest, size) ? std::optional((*found).record->name())
                                                                              : std::nullopt;
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
  const auto found = modules.lower_bound(Content(digest, size));
  if (found == modules.end() || module_content(*found) != Content(digest, size)) return nullptr;
  return &(*found).record->modules()[(*found).module];
}

namespace {

/// The names between two positions, each once, in ascending order.
template <class Places>
std::vector<std::string> names_between(const Places& places, const auto& position, std::uint64_t begin,
                                       std::uint64_t end) {
  std::set<std::string_view> names;
  for (auto place = places.lower_bound(begin); place != places.end() && position(*place) < end; ++place)
    names.insert((*place).record->name());
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<std::string> ArchiveRecords::sharing(std::uint64_t position) {
  need_all();
  return names_between(sharing_, &ArchiveRecords::position, position, position + 1);
}

std::vector<std::string> ArchiveRecords::using_modules(std::uint64_t begin, std::uint64_t end) {
  need_all();
  return names_between(using_, &ArchiveRecords::module_position, begin, end);
}

void ArchiveRecords::write_directory(const ZipMember& index, std::uint64_t position, std::string_view comment,
                                     std::uint64_t section, const Sink& sink) {
  const std::uint64_t begin = writes_changes() ? section : 0;
  std::vector<std::pair<std::uint64_t, const Record*>> owners;  // by their headers; weights have no record
  for (auto place = members_.begin(); place != members_.end(); ++place) {
    const Member::Place& at = (*place)->place;
    if (!at.shared && at.position - at.header >= begin) owners.emplace_back(at.position - at.header, (*place).get());
  }
  std::vector<ZipMember> others;
  append_zip_members(others, weights_.files(), begin);
  others.push_back(index);
  std::ranges::sort(owners);
  std::ranges::sort(others, {}, &ZipMember::position);
  ZipDirectory directory(position, sink);
  auto other = others.cbegin();
  const auto add_others = [&](std::uint64_t end) {
    for (; other != others.cend() && other->position < end; ++other)
      directory.add({}, other->name, other->size, other->crc32, other->position);
  };
  for (const auto& [at, record] : owners) {
    add_others(at);
    directory.add(record->place.apart ? apart_folder : std::string_view(), record->name(), record->place.size,
                  record->place.crc32, at);
  }
  add_others(std::numeric_limits<std::uint64_t>::max());
  directory.end(comment);
}

/// The bytes of an index, part by part.
class ArchiveRecords::Writing {
 public:
  Writing(std::string_view writer, std::uint64_t position, const Sink& sink)
      : writer(writer), position(position), sink_(sink) {}

  const std::string_view writer;
  const std::uint64_t position;  // of the index

  struct Block {
    Digest digest;
    std::uint64_t position;  // in the file
    std::uint32_t size, member_count;
    std::string first_name;
  };

  /// Adds bytes at a multiple of eight, and returns their position in the index.
  std::uint32_t add(std::span<const std::uint8_t> part) {
    const std::size_t at = (index_.size + 7) / 8 * 8;
    if (at + part.size() >= max_buffer_size)
      throw std::length_error("the index of an archive has to be smaller than 2 GiB: shorten names and metadata");
    pending_.resize(pending_.size() + (at - index_.size));
    pending_.insert(pending_.end(), part.begin(), part.end());
    index_.size = at + part.size();
    if (constexpr std::size_t most = std::size_t{1} << 20; pending_.size() >= most) flush();
    return static_cast<std::uint32_t>(at);
  }

  /// The same of a buffer, with its digest.
  schema::PartPlace add(const flatbuffers::DetachedBuffer& buffer) {
    const std::span<const std::uint8_t> part(buffer.data(), buffer.size());
    return schema::PartPlace(to_schema(digest(part)), add(part), static_cast<std::uint32_t>(part.size()));
  }

  /// Adds members as blocks of nearly the same size.
  void add_blocks(Members::Iterator& member, std::size_t count, std::vector<Block>& blocks) {
    for (std::size_t left = (count + members_in_block - 1) / members_in_block; left != 0; --left) {
      const std::size_t size = (count + left - 1) / left;
      blocks.push_back(add_block(member, static_cast<std::uint32_t>(size)));
      count -= size;
    }
  }

  WrittenIndex end(flatbuffers::FlatBufferBuilder& fbb, flatbuffers::Offset<schema::Index> root) {
    fbb.Finish(root);
    const std::span<const std::uint8_t> bytes(fbb.GetBufferPointer(), fbb.GetSize());
    index_.root_position = add(bytes);
    index_.root_size = bytes.size();
    index_.root_digest = digest(bytes);
    flush();
    return index_;
  }

 private:
  /// Of the next members.
  Block add_block(Members::Iterator& member, std::uint32_t count) {
    flatbuffers::FlatBufferBuilder fbb(1 << 15);
    std::string first_name((*member)->name());
    std::vector<flatbuffers::Offset<schema::Member>> tables;
    for (std::uint32_t i = 0; i < count; ++i, ++member) {
      const Record& m = **member;
      std::vector<schema::Module> modules;
      for (const Member::Module& module : m.modules())
        modules.emplace_back(module.position, module.size, to_schema(module.digest));
      // Members that follow each other have much in common.
      const auto shared = [&](const std::string& text) { return fbb.CreateSharedString(text); };
      const auto optional = [&](const std::optional<Text>& text) {
        return text ? shared(*text) : flatbuffers::Offset<flatbuffers::String>();
      };
      const auto name = fbb.CreateString(m.name().data(), m.name().size());
      const auto module_vector = fbb.CreateVectorOfStructs(modules);
      const Member::Summary& said = *m.summary;
      const auto fun_name = shared(said.fun_name), jax_version = optional(said.jax_version),
                 wrote = shared(said.writer);
      const auto platforms = shared(said.platforms), arguments = shared(said.arguments), results = shared(said.results);
      const auto text = m.metadata();
      const auto metadata =
          text ? fbb.CreateSharedString(text->data(), text->size()) : flatbuffers::Offset<flatbuffers::String>();
      const auto& [position, size, crc32, header, is_shared, is_apart] = m.place;
      const schema::Place place(position, size, crc32, header, is_shared, is_apart);
      const schema::Digest digest = to_schema(m.digest);
      tables.push_back(schema::CreateMember(fbb, name, &place, &digest, m.size, module_vector, fun_name, jax_version,
                                            wrote, platforms, said.nr_devices, arguments, said.argument_count, results,
                                            said.result_count, metadata, m.own_metadata));
    }
    fbb.Finish(schema::CreateBlock(fbb, fbb.CreateVector(tables)));
    const std::span<const std::uint8_t> bytes(fbb.GetBufferPointer(), fbb.GetSize());
    const std::uint64_t at = position + add(bytes);
    return {digest(bytes), at, static_cast<std::uint32_t>(bytes.size()), count, std::move(first_name)};
  }

  void flush() {
    sink_(pending_);
    pending_.clear();
  }

  const Sink& sink_;
  std::vector<std::uint8_t> pending_;
  WrittenIndex index_;
};

WrittenIndex ArchiveRecords::write(std::string_view writer, std::uint64_t end, const Sink& sink) {
  if (!is_whole_) throw std::bad_alloc();
  Writing writing(writer, end, sink);
  return writes_changes() ? write_changes(writing) : write_all(writing);
}

IndexBytes ArchiveRecords::write(std::string_view writer, std::uint64_t end) {
  IndexBytes index;
  static_cast<WrittenIndex&>(index) = write(writer, end, [&](std::span<const std::uint8_t> bytes) {
    index.bytes.insert(index.bytes.end(), bytes.begin(), bytes.end());
  });
  return index;
}

WrittenIndex ArchiveRecords::write_all(Writing& writing) {
  need_all();
  weights();
  std::vector<Writing::Block> blocks;
  auto member = members_.begin();
  for (std::size_t left = size_; left != 0;) {
    const auto count = std::min<std::size_t>(left, members_in_block);
    writing.add_blocks(member, count, blocks);
    left -= count;
  }
  std::vector<schema::BlockPlace> places;
  std::string names;
  std::uint32_t number = 0;
  for (const Writing::Block& block : blocks) {
    places.emplace_back(to_schema(block.digest), static_cast<std::uint32_t>(block.position - writing.position),
                        block.size, number, static_cast<std::uint32_t>(names.size()),
                        static_cast<std::uint32_t>(block.first_name.size()));
    number += block.member_count;
    names += block.first_name;
  }
  schema::PartPlace weights;
  if (!weights_.empty()) weights = writing.add(weights_.write());
  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writing.writer.data(), writing.writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(places);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
  return writing.end(fbb, schema::CreateIndex(fbb, written_by, number, writing.position, place_vector, name_vector,
                                              weights_.empty() ? nullptr : &weights));
}

namespace {

/// A block with one member, whose name no reader accepts: those that do not know `moved` show it in an error.
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

WrittenIndex ArchiveRecords::write_changes(Writing& writing) {
  // The first of the members, all of them known, that are in a block or behind it.
  const auto first_in = [&](std::uint32_t block) {
    if (block == 0) return members_.begin();
    return block == base_->block_count() ? members_.end() : members_.lower_bound(base_->first_name(block));
  };
  std::vector<Writing::Block> blocks;
  for (std::uint32_t i = 0; i < base_->block_count(); ++i) {
    if (!changed_.contains(i)) {
      const ArchiveIndex::BlockPlace place = base_->block_place(i);
      blocks.push_back({place.digest, place.position, place.size, place.member_count, std::string(place.first_name)});
      continue;
    }
    auto first = first_in(i);
    const auto behind = first_in(i + 1);
    std::size_t count = 0;
    for (auto member = first; member != behind; ++member) ++count;
    writing.add_blocks(first, count, blocks);
  }
  std::vector<schema::MovedBlock> moved;
  std::string names;
  std::uint32_t members = 0;
  for (const Writing::Block& block : blocks) {
    moved.emplace_back(to_schema(block.digest), block.position, block.size, members,
                       static_cast<std::uint32_t>(names.size()), static_cast<std::uint32_t>(block.first_name.size()));
    names += block.first_name;
    members += block.member_count;
  }

  schema::FilePartPlace weights = base_->weights_place();
  if (base_files_ && weights_.files().size() != *base_files_) {
    const schema::PartPlace part = writing.add(weights_.write());
    weights = schema::FilePartPlace(part.digest(), writing.position + part.position(), part.size());
  }

  const schema::PartPlace part = writing.add(notice());
  const schema::BlockPlace place(part.digest(), part.position(), part.size(), 0, 0, 0);
  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  const auto written_by = fbb.CreateString(writing.writer.data(), writing.writer.size());
  const auto place_vector = fbb.CreateVectorOfStructs(&place, 1);
  const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
  const auto moved_vector = fbb.CreateVectorOfStructs(moved);
  return writing.end(fbb, schema::CreateIndex(fbb, written_by, 1, writing.position, place_vector, name_vector, nullptr,
                                              0, weights.size() == 0 ? nullptr : &weights, moved_vector, members));
}

}  // namespace jaxexp::wire

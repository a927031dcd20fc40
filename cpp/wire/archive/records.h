// The members of an archive that is being written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/archive/limits.h"
#include "wire/archive/member.h"
#include "wire/archive/weights.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// Like std::set, with eight bytes a pointer where that has fifty. A change moves some hundred keys, and ends the
/// validity of iterators. `Less` also compares with whatever is searched for.
template <class Key, class Less>
class SortedChunks {
 public:
  class Iterator {
   public:
    Iterator(const SortedChunks& set, std::size_t chunk, std::size_t i) : set_(&set), chunk_(chunk), i_(i) { settle(); }

    const Key& operator*() const { return set_->chunks_[chunk_][i_]; }
    Iterator& operator++() { return ++i_, settle(), *this; }
    bool operator==(const Iterator& other) const { return chunk_ == other.chunk_ && i_ == other.i_; }

   private:
    friend SortedChunks;
    void settle() {
      if (chunk_ < set_->chunks_.size() && i_ == set_->chunks_[chunk_].size()) ++chunk_, i_ = 0;
    }

    const SortedChunks* set_;
    std::size_t chunk_, i_;
  };

  SortedChunks() = default;
  SortedChunks(const SortedChunks&) = delete;
  SortedChunks& operator=(const SortedChunks&) = delete;

  Iterator begin() const { return {*this, 0, 0}; }
  Iterator end() const { return {*this, chunks_.size(), 0}; }

  template <class Sought>
  Iterator lower_bound(const Sought& sought) const {
    const auto chunk = std::partition_point(chunks_.begin(), chunks_.end(),
                                            [&](const auto& keys) { return Less()(keys.back(), sought); });
    if (chunk == chunks_.end()) return end();
    const auto key = std::lower_bound(chunk->begin(), chunk->end(), sought, Less());
    return {*this, static_cast<std::size_t>(chunk - chunks_.begin()), static_cast<std::size_t>(key - chunk->begin())};
  }

  /// The key must not be there.
  void insert(Key key) {
    if (chunks_.empty()) {
      chunks_.emplace_back().reserve(most);
      return chunks_[0].push_back(std::move(key));
    }
    const Iterator found = lower_bound(key);
    // What is behind all others extends the last chunk.
    std::size_t at = found.chunk_, i = found.i_;
    if (at == chunks_.size()) i = chunks_[--at].size();
    if (chunks_[at].size() == most) {
      const std::size_t kept = i == most ? most : most / 2;  // keys that come in order fill their chunks
      chunks_.emplace(chunks_.begin() + static_cast<std::ptrdiff_t>(at) + 1)->reserve(most);
      auto& keys = chunks_[at];
      const auto middle = keys.begin() + static_cast<std::ptrdiff_t>(kept);
      std::move(middle, keys.end(), std::back_inserter(chunks_[at + 1]));
      keys.erase(middle, keys.end());
      if (i >= kept) ++at, i -= kept;
    }
    chunks_[at].insert(chunks_[at].begin() + static_cast<std::ptrdiff_t>(i), std::move(key));
  }

  Key take(const Iterator& place) {
    auto& keys = chunks_[place.chunk_];
    const auto at = keys.begin() + static_cast<std::ptrdiff_t>(place.i_);
    Key key = std::move(*at);
    keys.erase(at);
    if (keys.empty()) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(place.chunk_));
    return key;
  }

 private:
  static constexpr std::size_t most = 256;

  std::vector<std::vector<Key>> chunks_;  // none is empty
};

/// Summaries, of which there are few different ones.
class Summaries {
 public:
  using Shared = std::shared_ptr<const Member::Summary>;
  Shared shared(const Member::Summary& summary);

 private:
  std::unordered_multimap<std::size_t, Shared> known_;
};

/// A name and a Member in one piece of memory.
class Record {
 public:
  struct Deleter {
    void operator()(Record* record) const;
  };
  using Owner = std::unique_ptr<Record, Deleter>;

  static Owner make(std::string_view name, const Member& member, Summaries& summaries);

  std::string_view name() const { return {text(), name_size_}; }
  std::span<const Member::Module> modules() const { return {module(), module_count_}; }
  std::optional<std::string_view> metadata() const {
    if (long_metadata_) return long_metadata_->str();
    return has_metadata_ ? std::optional(std::string_view(text() + name_size_, metadata_size_)) : std::nullopt;
  }
  Member member() const;

  const Summaries::Shared summary;
  const Digest digest;
  const Member::Place place;
  const std::uint32_t size;
  const bool own_metadata;

 private:
  Record(std::string_view name, const Member& member, Summaries::Shared summary);

  // What follows in memory: modules, then the name, then metadata unless members may share them.
  Member::Module* module() { return reinterpret_cast<Member::Module*>(this + 1); }
  const Member::Module* module() const { return reinterpret_cast<const Member::Module*>(this + 1); }
  const char* text() const { return reinterpret_cast<const char*>(module() + module_count_); }

  std::unique_ptr<const Text> long_metadata_;
  const std::uint32_t name_size_, module_count_;
  const std::uint16_t metadata_size_;
  const bool has_metadata_;
};

/// An index that was written: its size, and where its root is in it.
struct WrittenIndex {
  std::size_t size = 0, root_position = 0, root_size = 0;
  Digest root_digest = {};
};

struct IndexBytes : WrittenIndex {
  std::vector<std::uint8_t> bytes;
};

class ArchiveRecords {
 public:
  /// Checks all of an index and takes over its members and its weights. Throws Error.
  void take(const ArchiveIndex& index);
  /// The same if there are few members. Of many, it takes over blocks when they are needed: the index has to live as
  /// long as this. All functions may then throw Error. Tests change what is few.
  void build_on(const ArchiveIndex& index, std::uint32_t few = max_rewritten_members);

  std::size_t size() const { return size_; }
  std::vector<std::string_view> names();
  bool contains(std::string_view name) { return record(name) != nullptr; }
  /// Nothing where there is no such member.
  std::optional<Member> get(std::string_view name);
  ArchiveWeights& weights();
  /// Throws std::invalid_argument where a new member cannot have this name, which may be a folder of other names.
  void check_name(std::string_view name);
  /// Throws std::invalid_argument where something in it is not allowed.
  void put(std::string_view name, const Member& member);
  /// The member has to be there.
  void remove(std::string_view name);

  /// A member of this content; null where none is known. Of an index that this builds on, only members of blocks that
  /// were needed are known.
  std::optional<std::string_view> of_content(const Digest& digest, std::uint32_t size) const;
  /// A module of this content, likewise; and one inside a member that owns its bytes and has its modules in them.
  const Member::Module* module(const Digest& digest, std::uint32_t size) const;
  const Member::Module* owned_module(const Digest& digest, std::uint32_t size) const;
  /// The members that share another's bytes at a position.
  std::vector<std::string> sharing(std::uint64_t position);
  /// The members with modules that are apart from them, between two positions.
  std::vector<std::string> using_modules(std::uint64_t begin, std::uint64_t end);

  /// Writes the index piece by piece. `end` is where the members' bytes end and the index begins. Throws
  /// std::length_error where it is too large.
  WrittenIndex write(std::string_view writer, std::uint64_t end, const Sink& sink);
  IndexBytes write(std::string_view writer, std::uint64_t end);

  /// Writes what stands behind the index, from a position on: the ZIP file's directory, and its end with a comment. The
  /// directory has all members, or after `write` wrote only changes, those of the section that begins at a position.
  void write_directory(const ZipMember& index, std::uint64_t position, std::string_view comment, std::uint64_t section,
                       const Sink& sink);

 private:
  class Writing;

  struct ByName {
    bool operator()(std::string_view a, std::string_view b) const { return a < b; }
    bool operator()(const Record::Owner& a, std::string_view b) const { return a->name() < b; }
    bool operator()(std::string_view a, const Record::Owner& b) const { return a < b->name(); }
    bool operator()(const Record::Owner& a, const Record::Owner& b) const { return a->name() < b->name(); }
  };
  using Members = SortedChunks<Record::Owner, ByName>;

  /// Records by something else that they say, as far as `Key` has it: the ones of hostile files may all say the same,
  /// so they are also in the order of their names. What is looked for is ordered, not hashed, for the same reason.
  struct Known {
    const Record* record;
    std::uint32_t module;
  };
  template <auto key>
  struct By {
    using Key = decltype(key(Known()));
    bool operator()(const Known& a, const Known& b) const {
      return std::tuple(key(a), a.record->name(), a.module) < std::tuple(key(b), b.record->name(), b.module);
    }
    bool operator()(const Known& a, const Key& b) const { return key(a) < b; }
    bool operator()(const Key& a, const Known& b) const { return a < key(b); }
  };
  using Content = std::pair<Digest, std::uint32_t>;
  static Content content(const Known& known) { return {known.record->digest, known.record->size}; }
  static Content module_content(const Known& known) {
    const Member::Module& module = known.record->modules()[known.module];
    return {module.digest, module.size};
  }
  static std::uint64_t position(const Known& known) { return known.record->place.position; }
  static std::uint64_t module_position(const Known& known) { return known.record->modules()[known.module].position; }
  using Modules = SortedChunks<Known, By<module_content>>;

  const Record* record(std::string_view name);
  const Record* known(std::string_view name) const;

  /// Takes over the block in which a name is, or would be; or all blocks.
  void need(std::string_view name);
  void need_block(std::uint32_t block);
  void need_all();
  /// Whether an index of changes is to be written.
  bool writes_changes() const { return base_ && size_ > few_; }
  WrittenIndex write_all(Writing& writing);
  WrittenIndex write_changes(Writing& writing);

  void know(std::string_view name, const Member& member);
  void know(const ArchiveIndex& index, std::uint32_t first, std::uint32_t end);
  void forget(const Members::Iterator& place);
  const Member::Module* module_in(const Modules& modules, const Digest& digest, std::uint32_t size) const;
  template <class Change>
  void change(const Record& record, const Change& change);

  Members members_;
  std::size_t size_ = 0;
  ArchiveWeights weights_;

  // The index that this builds on; which of its blocks were taken over, which of these changed, and once its weights
  // were taken over, how many files it has.
  const ArchiveIndex* base_ = nullptr;
  std::uint32_t few_ = 0;
  std::set<std::uint32_t> needed_, changed_;
  std::optional<std::size_t> base_files_;
  bool is_whole_ = true;  // no block was taken over in part, because memory ran out

  Summaries summaries_;
  SortedChunks<Known, By<content>> contents_;
  /// Modules of members that own them; and where the owner may be in a block that was not needed, of others.
  Modules modules_, used_modules_;
  SortedChunks<Known, By<position>> sharing_;
  SortedChunks<Known, By<module_position>> using_;
};

}  // namespace jaxexp::wire

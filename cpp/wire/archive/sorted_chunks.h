// A sorted set in little memory: arrays of some hundred keys each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

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

  /// The first key that is not less.
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

  /// Takes out the key at an iterator.
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

}  // namespace jaxexp::wire

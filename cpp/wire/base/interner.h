// A hash table from byte strings of several kinds to offsets: how a writer finds again what it wrote before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "wire/base/digest.h"
#include "wire/base/flat_map.h"

namespace jaxexp::wire {

/// All keys are in one string: these tables live for one artifact, and their keys are many and small.
class Interner {
 public:
  /// The offset that is kept for a key, and whether the key is new (its offset is then 0 and has to be set). Valid
  /// until the next call.
  std::pair<std::uint32_t&, bool> insert(std::uint8_t kind, std::string_view key) {
    if (keys_.empty()) keys_.reserve(256);
    // Users choose the keys, so the hash has a seed. The map has no key 0.
    for (std::uint64_t hash = (SeededHash()(key) ^ std::uint64_t{kind} << 1) | 1;; hash += 2) {
      const auto [entry, is_new] = entries_.insert(hash);
      if (is_new) {
        entry = {0, static_cast<std::uint32_t>(keys_.size()), static_cast<std::uint32_t>(key.size()), kind};
        keys_ += key;
        return {entry.offset, true};
      }
      if (entry.kind == kind && std::string_view(keys_.data() + entry.start, entry.size) == key)
        return {entry.offset, false};
    }
  }

 private:
  struct Entry {
    std::uint32_t offset, start, size;  // of the key, in `keys_`; artifacts, which are no smaller, end at 2 GiB
    std::uint8_t kind;
  };

  FlatMap<Entry> entries_;
  std::string keys_;
};

}  // namespace jaxexp::wire

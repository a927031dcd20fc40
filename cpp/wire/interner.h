// A hash table from byte strings of several kinds to offsets: how a writer finds again what it wrote before.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jaxexp::wire {

/// Open addressing, and all keys in one string: these tables live for one artifact, and their keys are many and small.
class Interner {
 public:
  /// The offset that is kept for a key, and whether the key is new (its offset is then 0 and has to be set). Valid
  /// until the next call.
  std::pair<std::uint32_t&, bool> insert(std::uint8_t kind, std::string_view key) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const auto hash = static_cast<std::uint32_t>(std::hash<std::string_view>()(key) * 31 + kind) | 1;
    Slot& slot = find(hash, [&](const Slot& slot) {
      return slot.kind == kind && slot.size == key.size() && std::memcmp(keys_.data() + slot.start, key.data(), key.size()) == 0;
    });
    if (slot.hash != 0) return {slot.offset, false};
    slot = {hash, 0, keys_.size(), key.size(), kind};
    keys_ += key;
    ++used_;
    return {slot.offset, true};
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;  // 0 where the slot is free
    std::uint32_t offset = 0;
    std::size_t start = 0, size = 0;  // of the key, in `keys_`
    std::uint8_t kind = 0;
  };

  template <class IsKey>
  Slot& find(std::uint32_t hash, const IsKey& is_key) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash >> 1;
    while (slots_[i & mask].hash != 0 && !(slots_[i & mask].hash == hash && is_key(slots_[i & mask]))) ++i;
    return slots_[i & mask];
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 4 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.hash != 0) find(slot.hash, [](const Slot&) { return false; }) = slot;
  }

  std::vector<Slot> slots_;
  std::string keys_;
  std::size_t used_ = 0;
};

}  // namespace jaxexp::wire

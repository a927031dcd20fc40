// A hash table from byte strings of several kinds to offsets: how a writer finds again what it wrote before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/unaligned.h"

namespace jaxexp::wire {

/// Open addressing, and all keys in one string: these tables live for one artifact, and their keys are many and small.
class Interner {
 public:
  /// The offset that is kept for a key, and whether the key is new (its offset is then 0 and has to be set). Valid
  /// until the next call.
  std::pair<std::uint32_t&, bool> insert(std::uint8_t kind, std::string_view key) {
    if (4 * (used_ + 1) > 3 * slots_.size()) grow();
    const std::uint32_t hash = hash_of(kind, key);
    Slot& slot = find(hash, [&](const Slot& slot) {
      return slot.kind == kind &&
             std::string_view(keys_.data() + slot.start, slot.size) == key;  // memcmp takes no null
    });
    if (slot.hash != 0) return {slot.offset, false};
    slot = {hash, 0, static_cast<std::uint32_t>(keys_.size()), static_cast<std::uint32_t>(key.size()), kind};
    keys_ += key;
    ++used_;
    return {slot.offset, true};
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;  // 0 where the slot is free
    std::uint32_t offset = 0;
    std::uint32_t start = 0,
                  size = 0;  // of the key, in `keys_`; artifacts, which are larger or not much smaller, end at 2 GiB
    std::uint8_t kind = 0;
  };

  /// Never 0. Keys are offsets and short texts: eight bytes a step, and the rest without a loop.
  static std::uint32_t hash_of(std::uint8_t kind, std::string_view key) {
    constexpr std::uint64_t factor = 0x9E3779B97F4A7C15u;
    const char* p = key.data();
    std::size_t left = key.size();
    std::uint64_t hash = (left << 8 | kind) * factor;
    const auto mix = [&](std::uint64_t bytes) { hash = (hash ^ bytes) * factor, hash ^= hash >> 32; };
    for (; left >= 8; p += 8, left -= 8) mix(load<std::uint64_t>(p));
    if (left >= 4) {
      mix(load<std::uint32_t>(p) | std::uint64_t{load<std::uint32_t>(p + left - 4)} << 32);
    } else if (left != 0) {
      const auto byte = [&](std::size_t i) { return std::uint64_t{static_cast<std::uint8_t>(p[i])}; };
      mix(byte(0) | byte(left / 2) << 8 | byte(left - 1) << 16);
    }
    return static_cast<std::uint32_t>(hash) | 1;
  }

  template <class IsKey>
  Slot& find(std::uint32_t hash, const IsKey& is_key) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash >> 1;
    while (slots_[i & mask].hash != 0 && !(slots_[i & mask].hash == hash && is_key(slots_[i & mask]))) ++i;
    return slots_[i & mask];
  }

  void grow() {
    if (slots_.empty()) keys_.reserve(256);
    std::vector<Slot> old(slots_.empty() ? 32 : 4 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old)
      if (slot.hash != 0) find(slot.hash, [](const Slot&) { return false; }) = slot;
  }

  std::vector<Slot> slots_;
  std::string keys_;
  std::size_t used_ = 0;
};

}  // namespace jaxexp::wire

// A hash table from non-zero 64-bit keys (buffer positions, object identities): what codec passes remember things in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/digest.h"

namespace jaxexp::wire {

inline std::uint64_t process_seed() {
  static const std::uint64_t seed = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return seed;
}

/// The value of what is only remembered.
struct Nothing {};

/// Open addressing in one array: these maps live for one pass and have one look-up for each table or object.
template <class Value>
class FlatMap {
 public:
  // Positions are chosen by who writes the buffer.
  FlatMap() : FlatMap(process_seed()) {}
  explicit FlatMap(std::uint64_t factor) : factor_(factor | 1) {}

  /// The value of a key, and whether the key is new (its value is then a default one). Valid until the next insertion.
  std::pair<Value&, bool> insert(std::uint64_t key) {
    if (used_ >= most_) make_room();
    const std::size_t place = find(key);
    Slot& slot = slots_[place & mask_];
    const bool is_new = slot.key == 0;
    if (is_new) slot.key = key, ++used_, spend(place - home(key));
    return {slot.value, is_new};
  }

  bool contains(std::uint64_t key) const { return used_ != 0 && slots_[find(key) & mask_].key == key; }
  bool empty() const { return used_ == 0; }
  std::size_t size() const { return used_; }

  /// How many slots with other keys stand between a key and where it should be. There has to be one key.
  std::size_t steps(std::uint64_t key) const { return find(key) - home(key); }

 private:
  struct Slot {
    std::uint64_t key = 0;
    [[no_unique_address]] Value value{};
  };

  std::size_t home(std::uint64_t key) const { return (key * factor_) >> 32; }

  /// Where a key is or would be, beyond the end where that is at the beginning.
  std::size_t find(std::uint64_t key) const {
    std::size_t place = home(key);
    while (slots_[place & mask_].key != 0 && slots_[place & mask_].key != key) ++place;
    return place;
  }

  /// Positions are at regular distances, which a few factors in a hundred bring together. Then the next insertion
  /// takes another one.
  void spend(std::size_t steps) {
    if (steps == 0) return;
    if (steps > steps_left_) most_ = 0;
    steps_left_ -= std::min(steps, steps_left_);
  }

  void make_room() {
    constexpr std::size_t first_size = 16, most_factors = 8;
    const bool is_full = 2 * (used_ + 1) > slots_.size();
    std::vector<Slot> old(!is_full ? slots_.size() : slots_.empty() ? first_size : 4 * slots_.size());
    factors_ = is_full ? 1 : factors_ + 1;
    if (!is_full) factor_ = factor_ * 0x5851F42D4C957F2D + 2;  // as odd as the last one
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    most_ = slots_.size() / 2;
    // Some keys collide whatever the factor is.
    steps_left_ = factors_ < most_factors ? slots_.size() : ~std::size_t{0};
    for (Slot& slot : old)
      if (slot.key != 0) place_again(std::move(slot));
  }

  void place_again(Slot&& slot) {
    const std::size_t place = find(slot.key);
    spend(place - home(slot.key));
    slots_[place & mask_] = std::move(slot);
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0, used_ = 0;
  std::size_t most_ = 0;        // keys for these slots and this factor
  std::size_t steps_left_ = 0;  // two for each of them
  std::size_t factors_ = 0;     // that were tried for this size
  std::uint64_t factor_;
};

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

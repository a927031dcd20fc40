// A hash table from non-zero 64-bit keys (buffer positions, object identities): what codec passes remember things in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "wire/base/seed.h"

namespace jaxexp::wire {

/// The value of what is only remembered.
struct Nothing {};

/// Open addressing in one array: these maps live for one pass and have one look-up for each table or object.
template <class Value>
class FlatMap {
 public:
  /// The value of a key, and whether the key is new (its value is then a default one). Valid until the next insertion.
  std::pair<Value&, bool> insert(std::uint64_t key) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = find(key);
    const bool is_new = slot.key == 0;
    if (is_new) slot.key = key, ++used_;
    return {slot.value, is_new};
  }

  bool contains(std::uint64_t key) const {
    if (slots_.empty()) return false;
    return slots_[place(key)].key == key;
  }
  bool empty() const { return used_ == 0; }
  std::size_t size() const { return used_; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    [[no_unique_address]] Value value{};
  };

  Slot& find(std::uint64_t key) { return slots_[place(key)]; }

  std::size_t place(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = (key * factor_) >> 32;
    while (slots_[i & mask].key != 0 && slots_[i & mask].key != key) ++i;
    return i & mask;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 4 * slots_.size());
    old.swap(slots_);
    for (Slot& slot : old)
      if (slot.key != 0) find(slot.key) = std::move(slot);
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::uint64_t factor_ = process_seed() | 1;  // positions are chosen by who writes the buffer
};

}  // namespace jaxexp::wire

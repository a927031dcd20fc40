// Subtrees that lie in one stretch of the buffer, with nothing else in between. jax.export writes one for each argument
// and its sharding, again and again. A stretch that repeats one that was verified is compared with it, which takes a
// fraction of another walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/exported/visits.h"

namespace jaxexp::wire {

/// The stretches of one buffer.
class Stretches {
 public:
  static constexpr std::size_t word = 4, most_words = 256;

  /// What walking a subtree takes.
  struct Costs {
    std::size_t bytes, elements, levels;
  };

  struct Stretch {
    std::size_t position;
    std::uint32_t size;   // in bytes, up to the end of the last thing that was looked at
    std::uint32_t words;  // the same, and the padding
    std::uint32_t first;  // of its words, in the lists of all
    Costs costs;
    std::uint32_t next;  // an older one that begins like it
  };

  explicit Stretches(std::span<const std::uint8_t> buffer) : data_(buffer.data()), size_(buffer.size()) {}

  /// A stretch that repeats itself at a position, where a table of this kind is: the same bytes, except that tables
  /// lead to the same vtables from another place. Null where none is known.
  const Stretch* find(std::size_t position, std::uint8_t kind);

  /// Makes the visits that walking its repetition would make. Returns false, and makes none, where these would not all
  /// be first ones.
  bool visit(const Stretch& stretch, std::size_t position, Visits& visits) const;

  /// Keeps a stretch for `find`. `tables` are the positions of its tables, and `first_visits` says how many places
  /// were visited. Returns its number, or 0 where it is not kept: other parts of the buffer lie in it, or there is no
  /// room for it.
  std::uint32_t keep(std::size_t position, std::size_t size, const Costs& costs, std::span<const std::size_t> tables,
                     std::size_t first_visits, Visits& visits);

  /// From 1.
  std::uint32_t number(const Stretch& stretch) const {
    return static_cast<std::uint32_t>(&stretch - stretches_.data()) + 1;
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr std::size_t least_words = 7;  // walking a shorter one takes no longer than finding it
  static constexpr std::size_t most = 256, most_tries = 8;

  bool repeats(const Stretch& stretch, std::size_t position, std::uint8_t kind) const;
  /// Of those that look the same at their beginning, which is behind the offsets to the vtables of its first tables.
  std::uint32_t& newest_like(std::size_t position);
  /// What came after the last two when these came last. Lists have layers of a model, each like the one before.
  std::uint32_t& expected() { return expected_[(last_ + 16 * before_) % slots]; }
  void came(std::uint32_t index);

  static constexpr std::size_t slots = 256;
  const std::uint8_t* data_;
  std::size_t size_;
  std::vector<Stretch> stretches_;
  std::vector<std::uint32_t> moving_;  // of each word: all ones where it leads to a vtable, and zero elsewhere
  std::vector<std::uint8_t> marks_;    // of each word
  std::vector<std::uint32_t> newest_;  // by a hash of how a stretch begins
  std::vector<std::uint32_t> expected_;
  std::uint32_t last_ = 0, before_ = 0;
};

}  // namespace jaxexp::wire

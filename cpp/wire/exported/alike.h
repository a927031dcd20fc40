// Which tables in an artifact's lists are copies of one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace jaxexp::wire {

/// What the walk over a buffer noticed about the tables of lists, for the checks that follow. Tables with one number
/// say the same. Two tables with numbers have no part in common, unless they are one table.
class Alike {
 public:
  enum class Kind : std::uint8_t { tree, aval, sharding, named_sharding };

  static constexpr std::uint32_t unknown = 0;

  /// The numbers of a list's tables.
  class Numbers {
   public:
    explicit Numbers(std::span<const std::uint32_t> known) : known_(known) {}

    std::uint32_t operator[](std::uint32_t i) const { return i < known_.size() ? known_[i] : unknown; }

   private:
    std::span<const std::uint32_t> known_;
  };

  Numbers of(const void* list, Kind kind) const {
    for (const List& known : lists_)
      if (known.place == list && known.kind == kind) return Numbers(known.numbers);
    return Numbers({});
  }

  /// Numbers from the first table of a list on; none behind the last that is known.
  void note(const void* list, Kind kind, std::vector<std::uint32_t> numbers) {
    if (!numbers.empty() && lists_.size() < most_lists) lists_.push_back({list, kind, std::move(numbers)});
  }

 private:
  struct List {
    const void* place;
    Kind kind;
    std::vector<std::uint32_t> numbers;
  };

  static constexpr std::size_t most_lists = 128;  // what a few functions have
  std::vector<List> lists_;
};

}  // namespace jaxexp::wire

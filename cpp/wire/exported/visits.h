// Which places of a buffer a walk has visited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/base/flat_map.h"

namespace jaxexp::wire {

/// Places and as what they were visited. Everything that is visited is aligned to four bytes, so there is a mark for
/// each of these words.
class Visits {
 public:
  explicit Visits(std::size_t buffer_size) : chunks_(buffer_size / word / chunk_size + 1) {}

  /// Whether it is the first visit to this place as something of this kind (not zero).
  bool first(std::size_t position, std::uint8_t kind) {
    auto& chunk = chunks_[position / word / chunk_size];
    if (!chunk) chunk = std::make_unique<std::uint8_t[]>(chunk_size);
    std::uint8_t& visited_as = chunk[position / word % chunk_size];
    if (visited_as == kind) return false;
    if (visited_as == 0) return visited_as = kind, true;
    // Two kinds in one place: at best by chance (an empty vector may serve as any other).
    return others_.insert((std::uint64_t{position} << 8) | kind).second;
  }

 private:
  static constexpr std::size_t word = 4, chunk_size = std::size_t{1} << 12;
  std::vector<std::unique_ptr<std::uint8_t[]>> chunks_;  // absent where nothing was visited, as in a large module
  FlatMap<Nothing> others_;
};

}  // namespace jaxexp::wire

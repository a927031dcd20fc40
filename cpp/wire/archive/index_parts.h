// An index that is read from all over a file, in memory of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "wire/archive/index.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// The memory of an index of changes whose file is not in memory, or not at a multiple of eight.
class IndexParts {
 public:
  using Places = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // positions and sizes
  /// Calls a function with the bytes of each place, in this order.
  using Fetch = std::function<void(const Places&, const std::function<void(std::span<const std::uint8_t>)>&)>;

  /// Fetches the blocks and the weights of an index with such a root. Throws Error, and what `fetch` throws.
  void read(const Fetch& fetch, std::span<const std::uint8_t> root, const Digest& root_digest, std::uint64_t end,
            std::uint64_t size);

  /// For ArchiveIndex.
  std::vector<ArchiveIndex::Part> parts() const;

 private:
  struct Piece {
    std::uint64_t position;
    std::size_t size;
    std::vector<std::uint64_t> words;  // from the multiple of eight on that is not behind the position
  };
  std::vector<Piece> pieces_;
};

}  // namespace jaxexp::wire

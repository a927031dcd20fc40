// Places in a hostile root may overlap, but all of them together are no larger than the file.
#include "wire/archive/index_parts.h"

#include <algorithm>
#include <cstring>

namespace jaxexp::wire {
namespace {

constexpr std::uint64_t word = sizeof(std::uint64_t);

}  // namespace

void IndexParts::read(const Fetch& fetch, std::span<const std::uint8_t> root, const Digest& root_digest,
                      std::uint64_t end, std::uint64_t size) {
  const Places places = ArchiveIndex({}, root, root_digest, end, size).part_places();
  auto place = places.begin();
  fetch(places, [&](std::span<const std::uint8_t> bytes) {
    Piece piece{place->first, bytes.size(), std::vector<std::uint64_t>(bytes.size() / word + 2)};
    if (!bytes.empty())
      std::memcpy(reinterpret_cast<std::uint8_t*>(piece.words.data()) + piece.position % word, bytes.data(),
                  bytes.size());
    pieces_.push_back(std::move(piece));
    ++place;
  });
}

std::vector<ArchiveIndex::Part> IndexParts::parts() const {
  std::vector<ArchiveIndex::Part> parts;
  for (const auto& [position, size, words] : pieces_)
    parts.push_back({position, {reinterpret_cast<const std::uint8_t*>(words.data()) + position % word, size}});
  // Of those at one position, the last one is found, which is the largest.
  std::ranges::sort(parts, {}, [](const auto& part) { return std::pair(part.position, part.bytes.size()); });
  return parts;
}

}  // namespace jaxexp::wire

// Knows the layout of schema/archive.fbs, and puts blocks together from what the codec's own writer makes.
#include "index.h"

#include <algorithm>
#include <cstring>

#include "wire/base/digest.h"

namespace jaxexp::tests {
namespace {

using Bytes = std::vector<std::uint8_t>;

}  // namespace

const wire::schema::Index* index_root(std::span<const std::uint8_t> bytes) {
  flatbuffers::Verifier verifier(bytes.data(), bytes.size());
  if (bytes.size() < 16 || !verifier.VerifyBuffer<wire::schema::Index>(nullptr)) return nullptr;
  return flatbuffers::GetRoot<wire::schema::Index>(bytes.data());
}

std::vector<std::pair<std::size_t, std::size_t>> blocks_of(std::span<const std::uint8_t> bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> blocks;
  if (const auto* root = index_root(bytes))
    for (const auto* place : *root->blocks())
      if (place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
        blocks.emplace_back(place->position(), place->size());
  return blocks;
}

void seal_index(Bytes& bytes) {
  const auto* root = index_root(bytes);
  if (!root) return;
  std::vector<std::pair<std::size_t, wire::Digest>> digests;
  for (const auto* place : *root->blocks())
    if (place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
      digests.emplace_back(place->digest().bytes()->Data() - bytes.data(),
                           wire::digest(std::span(bytes).subspan(place->position(), place->size())));
  if (const auto* place = root->weights();
      place && place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
    digests.emplace_back(place->digest().bytes()->Data() - bytes.data(),
                         wire::digest(std::span(bytes).subspan(place->position(), place->size())));
  // All before any: in a damaged root a digest may lie over another one's place.
  for (const auto& [at, digest] : digests) std::ranges::copy(digest, bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

Bytes index_of(const std::vector<std::pair<std::string, wire::Member>>& members, std::size_t in_block,
               std::uint64_t end, const wire::ArchiveWeights& weights) {
  std::vector<Bytes> blocks;
  std::vector<wire::schema::BlockPlace> places;
  std::string names;
  for (std::size_t first = 0; first < members.size(); first += in_block) {
    wire::ArchiveRecords records;
    for (std::size_t i = first; i < std::min(members.size(), first + in_block); ++i)
      records.put(members[i].first, members[i].second);
    const wire::IndexBytes written = records.write("seed", end);
    const auto* root = flatbuffers::GetRoot<wire::schema::Index>(written.bytes.data() + written.root_position);
    const auto& place = *root->blocks()->Get(0);
    const auto start = written.bytes.begin() + place.position();
    blocks.emplace_back(start, start + place.size());
    const auto name_size = static_cast<std::uint32_t>(members[first].first.size());
    places.emplace_back(wire::schema::Digest(), 0, place.size(), static_cast<std::uint32_t>(first),
                        static_cast<std::uint32_t>(names.size()), name_size);
    names += members[first].first;
  }
  wire::schema::PartPlace weights_place;
  Bytes weights_part;
  if (!weights.empty()) {
    const flatbuffers::DetachedBuffer written = weights.write();
    weights_part.assign(written.data(), written.data() + written.size());
  }
  const auto root_with = [&] {
    flatbuffers::FlatBufferBuilder fbb;
    const auto writer = fbb.CreateString("seed");
    const auto place_vector = fbb.CreateVectorOfStructs(places);
    const auto name_vector = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(names.data()), names.size());
    fbb.Finish(wire::schema::CreateIndex(fbb, writer, static_cast<std::uint32_t>(members.size()), end, place_vector,
                                         name_vector, weights.empty() ? nullptr : &weights_place),
               index_identifier);
    return Bytes(fbb.GetBufferPointer(), fbb.GetBufferPointer() + fbb.GetSize());
  };
  const auto aligned = [](std::size_t size) { return (size + 7) / 8 * 8; };
  std::size_t position = aligned(root_with().size());
  for (std::size_t i = 0; i < blocks.size(); position = aligned(position + blocks[i++].size()))
    places[i] = {{},
                 static_cast<std::uint32_t>(position),
                 places[i].size(),
                 places[i].first_member(),
                 places[i].name_position(),
                 places[i].name_size()};
  weights_place = {{}, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(weights_part.size())};
  Bytes bytes = root_with();
  blocks.push_back(weights_part);
  for (const Bytes& block : blocks) {
    bytes.resize(aligned(bytes.size()));
    bytes.insert(bytes.end(), block.begin(), block.end());
  }
  seal_index(bytes);
  return bytes;
}

}  // namespace jaxexp::tests

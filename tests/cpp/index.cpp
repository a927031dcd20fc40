// Knows the layout of schema/archive.fbs, and puts blocks together from what the codec's own writer makes.
#include "index.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "wire/base/digest.h"
#include "wire/base/unaligned.h"

namespace jaxexp::tests {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Where a place of the file is in the bytes of an index.
std::optional<std::size_t> place_in(std::span<const std::uint8_t> bytes, const wire::schema::Index& root,
                                    std::uint64_t position, std::uint64_t size) {
  const std::uint64_t at = position - root.end();
  if (at > bytes.size() || size > bytes.size() - at) return std::nullopt;
  return static_cast<std::size_t>(at);
}

/// How many PagedBlocks a page has that are in the bytes.
std::uint32_t blocks_in(std::span<const std::uint8_t> bytes, const wire::schema::Index& root,
                        const wire::schema::PagePlace& page) {
  const std::uint64_t size = std::uint64_t{page.block_count()} * sizeof(wire::schema::PagedBlock);
  return page.index_position() == 0 && place_in(bytes, root, page.blocks_position(), size) ? page.block_count() : 0;
}

wire::schema::PagedBlock paged_block(std::span<const std::uint8_t> bytes, const wire::schema::Index& root,
                                     const wire::schema::PagePlace& page, std::uint32_t i) {
  return wire::load<wire::schema::PagedBlock>(bytes.data() + (page.blocks_position() - root.end()) +
                                              i * sizeof(wire::schema::PagedBlock));
}

}  // namespace

const wire::schema::Index* index_root(std::span<const std::uint8_t> bytes) {
  flatbuffers::Verifier verifier(bytes.data(), bytes.size());
  if (bytes.size() < 16 || !verifier.VerifyBuffer<wire::schema::Index>(nullptr)) return nullptr;
  const auto* root = flatbuffers::GetRoot<wire::schema::Index>(bytes.data());
  // The verifier does not look where the structs of a vector begin.
  const auto* pages = root->pages() ? root->pages()->Data() : nullptr;
  return reinterpret_cast<std::uintptr_t>(pages) % alignof(wire::schema::PagePlace) == 0 ? root : nullptr;
}

std::vector<std::pair<std::size_t, std::size_t>> blocks_of(std::span<const std::uint8_t> bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> blocks;
  const auto* root = index_root(bytes);
  if (!root) return blocks;
  if (root->pages())
    for (const auto* page : *root->pages())
      for (std::uint32_t i = 0; i < blocks_in(bytes, *root, *page); ++i) {
        const auto block = paged_block(bytes, *root, *page, i);
        if (const auto at = place_in(bytes, *root, block.position(), block.size()))
          blocks.emplace_back(*at, block.size());
      }
  else
    for (const auto* place : *root->blocks())
      if (place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
        blocks.emplace_back(place->position(), place->size());
  return blocks;
}

void seal_index(Bytes& bytes) {
  const auto* root = index_root(bytes);
  if (!root) return;
  using Digests = std::vector<std::pair<std::size_t, wire::Digest>>;
  Digests digests, pages;
  for (const auto* place : *root->blocks())
    if (place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
      digests.emplace_back(place->digest().bytes()->Data() - bytes.data(),
                           wire::digest(std::span(bytes).subspan(place->position(), place->size())));
  if (const auto* place = root->weights();
      place && place->position() <= bytes.size() && place->size() <= bytes.size() - place->position())
    digests.emplace_back(place->digest().bytes()->Data() - bytes.data(),
                         wire::digest(std::span(bytes).subspan(place->position(), place->size())));
  if (const auto* place = root->page_weights())
    if (const auto at = place_in(bytes, *root, place->position(), place->size()))
      digests.emplace_back(place->digest().bytes()->Data() - bytes.data(),
                           wire::digest(std::span(bytes).subspan(*at, place->size())));
  for (std::uint32_t k = 0; root->pages() && k < root->pages()->size(); ++k) {
    const auto& page = *root->pages()->Get(k);
    for (std::uint32_t i = 0; i < blocks_in(bytes, *root, page); ++i) {
      const auto block = paged_block(bytes, *root, page, i);
      if (const auto at = place_in(bytes, *root, block.position(), block.size()))
        digests.emplace_back(
            static_cast<std::size_t>(page.blocks_position() - root->end()) + i * sizeof(wire::schema::PagedBlock),
            wire::digest(std::span(bytes).subspan(*at, block.size())));
    }
  }
  // All before any: in a damaged root a digest may lie over another one's place.
  const auto put = [&](const Digests& all) {
    for (const auto& [at, digest] : all) std::ranges::copy(digest, bytes.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(digests);
  if (!(root = index_root(bytes)) || !root->pages()) return;
  for (const auto* page : *root->pages()) {
    const std::size_t size = blocks_in(bytes, *root, *page) * sizeof(wire::schema::PagedBlock);
    const auto names = place_in(bytes, *root, page->names_position(), page->names_size());
    if (size == 0 || !names) continue;
    wire::Digester digester;
    digester.update(std::span(bytes).subspan(static_cast<std::size_t>(page->blocks_position() - root->end()), size));
    digester.update(std::span(bytes).subspan(*names, page->names_size()));
    pages.emplace_back(page->digest().bytes()->Data() - bytes.data(), digester.digest());
  }
  put(pages);
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

Bytes paged_index_of(const std::vector<std::pair<std::string, wire::Member>>& members, std::size_t in_block,
                     std::size_t in_page, std::uint64_t end) {
  const Bytes plain = index_of(members, in_block, end);
  const auto& places = *index_root(plain)->blocks();
  // What stands behind the root, which has a constant size: blocks, then pages with their names.
  Bytes rest;
  std::vector<wire::schema::PagePlace> pages((places.size() + in_page - 1) / in_page);
  std::string page_names;
  const auto name_of = [&](std::uint32_t block) { return members[places.Get(block)->first_member()].first; };
  const auto first_member = [&](std::uint32_t block) {
    return block < places.size() ? places.Get(block)->first_member() : static_cast<std::uint32_t>(members.size());
  };
  for (std::size_t k = 0; k < pages.size(); ++k) page_names += name_of(static_cast<std::uint32_t>(k * in_page));
  const auto root_with = [&] {
    flatbuffers::FlatBufferBuilder fbb;
    const auto writer = fbb.CreateString("seed");
    const auto blocks = fbb.CreateVectorOfStructs(std::vector<wire::schema::BlockPlace>());
    const auto names = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(page_names.data()), page_names.size());
    const auto page_vector = fbb.CreateVectorOfStructs(pages);
    fbb.Finish(wire::schema::CreateIndex(fbb, writer, 0, end, blocks, names, nullptr, page_vector), index_identifier);
    return Bytes(fbb.GetBufferPointer(), fbb.GetBufferPointer() + fbb.GetSize());
  };
  const std::size_t start = (root_with().size() + 7) / 8 * 8;
  const auto add = [&](std::span<const std::uint8_t> part) {
    rest.resize((rest.size() + 7) / 8 * 8);
    rest.insert(rest.end(), part.begin(), part.end());
    return end + start + rest.size() - part.size();
  };
  std::uint32_t name_position = 0;
  for (std::size_t k = 0; k < pages.size(); ++k) {
    const auto first = static_cast<std::uint32_t>(k * in_page);
    const auto behind = static_cast<std::uint32_t>(std::min<std::size_t>(first + in_page, places.size()));
    Bytes blocks;
    std::string names;
    for (std::uint32_t i = first; i < behind; ++i) {
      const auto& place = *places.Get(i);
      const std::uint64_t position = add(std::span(plain).subspan(place.position(), place.size()));
      const std::string name = name_of(i);
      const wire::schema::PagedBlock block(place.digest(), position, place.size(), place.first_member(),
                                           static_cast<std::uint32_t>(names.size()),
                                           static_cast<std::uint32_t>(name.size()));
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&block);
      blocks.insert(blocks.end(), bytes, bytes + sizeof block);
      names += name;
    }
    const std::uint64_t blocks_position = add(blocks);
    const Bytes name_bytes(names.begin(), names.end());
    const auto name_size = static_cast<std::uint32_t>(name_of(first).size());
    pages[k] = wire::schema::PagePlace({}, blocks_position, add(name_bytes), 0, behind - first,
                                       first_member(behind) - first_member(first),
                                       static_cast<std::uint32_t>(names.size()), name_position, name_size);
    name_position += name_size;
  }
  Bytes bytes = root_with();
  bytes.resize(start);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  seal_index(bytes);
  return bytes;
}

}  // namespace jaxexp::tests

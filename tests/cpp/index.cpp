// Knows the layout of schema/archive.fbs, and nothing of the code that reads it.
#include "index.h"

#include <algorithm>
#include <cstring>

#include "target.h"
#include "wire/base/digest.h"
#include "wire/base/unaligned.h"

namespace jaxexp::tests {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t head = 16;

/// Calls `visit(digest, the bytes that it is of)` for each block. An index of changes has its blocks in `moved`, and
/// one for readers that do not know these.
template <class Visit>
void each_block(const IndexBuffer& index, const Visit& visit) {
  const auto* const moved = index.root->moved();
  for (std::uint32_t i = 0; !moved && i < index.root->blocks()->size(); ++i) {
    const auto* place = index.root->blocks()->Get(i);
    if (const auto found = index.at(index.end() + place->position(), place->size()))
      visit(place->digest().bytes()->Data(), *found);
  }
  for (std::uint32_t i = 0; moved && i < moved->size(); ++i) {
    const auto* place = moved->Get(i);
    if (const auto found = index.at(place->position(), place->size())) visit(place->digest().bytes()->Data(), *found);
  }
}

}  // namespace

std::optional<IndexBuffer> IndexBuffer::find(Bytes buffer) {
  if (buffer.size() < head || std::memcmp(buffer.data(), mark.data(), mark.size()) != 0) return std::nullopt;
  const auto root_at = wire::load<std::uint32_t>(buffer.data() + 4);
  IndexBuffer index{buffer.subspan(head), {}, wire::load<std::uint64_t>(buffer.data() + 8)};
  if (root_at > index.bytes.size() || root_at % 8 != 0 || index.position % 8 != 0) return std::nullopt;
  index.root_bytes = index.bytes.subspan(root_at);
  flatbuffers::Verifier verifier(index.root_bytes.data(), index.root_bytes.size());
  if (index.root_bytes.size() < 16 || !verifier.VerifyBuffer<wire::schema::Index>(nullptr)) return index;
  const auto* root = flatbuffers::GetRoot<wire::schema::Index>(index.root_bytes.data());
  // The verifier does not look where the structs of a vector begin.
  const auto* moved = root->moved() ? root->moved()->Data() : nullptr;
  if (reinterpret_cast<std::uintptr_t>(moved) % alignof(wire::schema::MovedBlock) == 0) index.root = root;
  return index;
}

std::optional<Bytes> IndexBuffer::at(std::uint64_t place, std::uint64_t size) const {
  const std::uint64_t start = place - position;
  if (start > bytes.size() || size > bytes.size() - start) return std::nullopt;
  return bytes.subspan(start, size);
}

std::vector<Bytes> IndexBuffer::blocks() const {
  std::vector<Bytes> found;
  if (root) each_block(*this, [&](const std::uint8_t*, Bytes block) { found.push_back(block); });
  return found;
}

std::vector<std::uint8_t> index_buffer(std::uint64_t position, const std::vector<wire::IndexBytes>& written) {
  std::vector<std::uint8_t> buffer(head);
  for (const wire::IndexBytes& one : written) {
    buffer.resize((buffer.size() + 7) / 8 * 8);
    const auto root_at = static_cast<std::uint32_t>(buffer.size() - head + one.root_position);
    require(one.root_position + one.root_size == one.bytes.size(), "the root is the last part of an index");
    std::memcpy(&buffer[4], &root_at, sizeof root_at);
    buffer.insert(buffer.end(), one.bytes.begin(), one.bytes.end());
  }
  std::ranges::copy(IndexBuffer::mark, buffer.begin());
  std::memcpy(&buffer[8], &position, sizeof position);
  return buffer;
}

void seal_index(std::vector<std::uint8_t>& buffer) {
  const auto index = IndexBuffer::find(buffer);
  if (!index || !index->root) return;
  // All before any: in a damaged root a digest may lie over another one's place.
  std::vector<std::pair<std::ptrdiff_t, wire::Digest>> digests;
  const auto add = [&](const std::uint8_t* at, const wire::Digest& digest) {
    digests.emplace_back(at - buffer.data(), digest);
  };
  const auto seal = [&](const auto* place, std::uint64_t position) {
    if (const auto part = index->at(position, place->size())) add(place->digest().bytes()->Data(), wire::digest(*part));
  };
  each_block(*index, [&](const std::uint8_t* at, Bytes block) { add(at, wire::digest(block)); });
  if (const auto* place = index->root->weights()) seal(place, index->end() + place->position());
  if (const auto* place = index->root->moved_weights()) seal(place, place->position());
  for (const auto& [at, digest] : digests) std::ranges::copy(digest, buffer.begin() + at);
}

}  // namespace jaxexp::tests

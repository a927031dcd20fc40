// Knows the layout of schema/trailer.fbs, and nothing of the code that reads it.
#include "seal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exported_generated.h"
#include "trailer_generated.h"
#include "wire/artifact/trailer.h"
#include "wire/base/digest.h"

namespace jaxexp::tests {
namespace {

constexpr std::size_t head = 16, footer = 48;

void put(std::vector<std::uint8_t>& bytes, std::size_t at, std::size_t number) {
  const auto value = static_cast<std::uint32_t>(number);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::size_t get(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// As the lengths in front of the modules say, from the end of the metadata on.
void seal_modules(std::vector<std::uint8_t>& bytes, std::size_t at, std::size_t end, std::size_t content_size) {
  flatbuffers::Verifier verifier(bytes.data() + end, content_size);
  if (content_size < 8 || !wire::schema::VerifyTrailerBuffer(verifier)) return;
  // All places before any digest: in a damaged trailer a digest may lie over another table.
  std::vector<std::pair<std::size_t, wire::Digest>> digests;
  for (const auto* notes : *wire::schema::GetTrailer(bytes.data() + end)->functions()) {
    if (at + 4 > end || get(bytes, at) > end - at - 4) break;
    const std::size_t size = get(bytes, at);
    const auto place = static_cast<std::size_t>(notes->module_digest()->bytes()->Data() - bytes.data());
    digests.emplace_back(place, wire::digest({bytes.data() + at + 4, size}));
    at += 4 + (size + 3) / 4 * 4;
  }
  for (const auto& [place, digest] : digests)
    std::ranges::copy(digest, bytes.begin() + static_cast<std::ptrdiff_t>(place));
}

}  // namespace

Sizes sizes_of(const std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < head + footer) return {0, 0};
  const std::size_t inner = bytes.size() - footer;
  const std::size_t content =
      std::min(get(bytes, bytes.size() - 28) & ~std::size_t{3}, (inner - head) & ~std::size_t{3});
  return {std::clamp(get(bytes, bytes.size() - 32), head, inner - content), content};
}

bool seal(std::vector<std::uint8_t>& bytes, std::size_t metadata_size, std::size_t content_size) {
  if (bytes.size() < head + footer + content_size || metadata_size > bytes.size()) return false;
  const std::size_t end = bytes.size(), start = end - footer - content_size;
  const auto at = [&](std::size_t place) { return bytes.begin() + static_cast<std::ptrdiff_t>(place); };
  std::ranges::copy(wire::mark, at(4));
  put(bytes, 12, end);
  if (start % 4 == 0) seal_modules(bytes, metadata_size, start, content_size);
  std::ranges::copy(wire::digest({bytes.data(), metadata_size}), at(end - 48));
  put(bytes, end - 32, metadata_size);
  put(bytes, end - 28, content_size);
  std::ranges::copy(wire::digest({bytes.data() + start, content_size + 24}), at(end - 24));
  std::ranges::copy(wire::mark, at(end - 8));
  return true;
}

}  // namespace jaxexp::tests

// The only user of the xxHash library, whose header is all of it.
#include "wire/base/digest.h"

#include <algorithm>
#include <cstring>

#include "wire/base/seed.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace jaxexp::wire {
namespace {

Digest canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  return std::to_array(bytes.digest);
}

}  // namespace

Digest digest(std::span<const std::uint8_t> bytes) { return canonical(XXH3_128bits(bytes.data(), bytes.size())); }

std::size_t SeededHash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), process_seed());
}

Digest copy_and_digest(std::uint8_t* target, std::span<const std::uint8_t> bytes) {
  constexpr std::size_t step = std::size_t{1} << 17;  // stays in a core's cache between the two uses
  if (bytes.size() <= step) {
    if (!bytes.empty()) std::memcpy(target, bytes.data(), bytes.size());
    return digest(bytes);
  }
  Digester digester;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(step, bytes.size()));
    std::memcpy(target, part.data(), part.size());
    digester.update(part);
    target += part.size();
    bytes = bytes.subspan(part.size());
  }
  return digester.digest();
}

struct Digester::State {
  XXH3_state_t xxh3;
};

Digester::Digester() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_128bits_reset(&state_->xxh3);
}

Digester::~Digester() = default;

void Digester::update(std::span<const std::uint8_t> part) {
  XXH3_128bits_update(&state_->xxh3, part.data(), part.size());
}

Digest Digester::digest() const { return canonical(XXH3_128bits_digest(&state_->xxh3)); }

}  // namespace jaxexp::wire

// The only user of the xxHash library, whose header is all of it.
#include "wire/base/digest.h"

#include <algorithm>
#include <cstring>

#include "wire/base/seed.h"

#define XXH_INLINE_ALL
#if defined(__x86_64__) && defined(__GNUC__)
// Builds for all processors use no vectors of 32 bytes, so these loops are chosen where the processor has them. With
// AVX-512, digests of what is in no cache take longer.
#define XXH_DISPATCH_AVX2 1
#define XXH_TARGET_AVX2 __attribute__((target("avx2")))
#define XXH_ACC_ALIGN 64
#include <immintrin.h>
#endif
#include <xxhash.h>

namespace jaxexp::wire {
namespace {

/// XXH3's loops over long inputs; all of them give the same digests.
struct Loops {
  XXH128_hash_t (*digest)(const void* bytes, std::size_t size);  // of more than XXH3_MIDSIZE_MAX bytes
  void (*update)(XXH3_state_t* state, const void* bytes, std::size_t size);
};

constexpr Loops common{
    [](const void* bytes, std::size_t size) { return XXH3_128bits(bytes, size); },
    [](XXH3_state_t* state, const void* bytes, std::size_t size) { XXH3_128bits_update(state, bytes, size); }};

#ifdef XXH_DISPATCH_AVX2

XXH_TARGET_AVX2 XXH128_hash_t digest_avx2(const void* bytes, std::size_t size) {
  return XXH3_hashLong_128b_internal(bytes, size, XXH3_kSecret, sizeof XXH3_kSecret, XXH3_accumulate_avx2,
                                     XXH3_scrambleAcc_avx2);
}
XXH_TARGET_AVX2 void update_avx2(XXH3_state_t* state, const void* bytes, std::size_t size) {
  XXH3_update(state, static_cast<const xxh_u8*>(bytes), size, XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2);
}
constexpr Loops avx2{digest_avx2, update_avx2};

const Loops& loops() {
  static const Loops& fastest = __builtin_cpu_supports("avx2") ? avx2 : common;
  return fastest;
}

#else

const Loops& loops() { return common; }

#endif

Digest canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  return std::to_array(bytes.digest);
}

}  // namespace

Digest digest(std::span<const std::uint8_t> bytes) {
  const Loops& used = bytes.size() > XXH3_MIDSIZE_MAX ? loops() : common;
  return canonical(used.digest(bytes.data(), bytes.size()));
}

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

void Digester::update(std::span<const std::uint8_t> part) { loops().update(&state_->xxh3, part.data(), part.size()); }

Digest Digester::digest() const { return canonical(XXH3_128bits_digest(&state_->xxh3)); }

}  // namespace jaxexp::wire

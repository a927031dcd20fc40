// The only user of the xxHash library, whose header is all of it.
#include "wire/base/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "wire/base/flat_map.h"

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

namespace {

using Words = std::array<std::uint32_t, 8>;
constexpr std::size_t block_size = 64;

/// The first bits behind the point of the cube roots of the first primes, and of the square roots of the first eight,
/// which are the state at the start.
constexpr std::array<std::uint32_t, 64> constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
constexpr Words start = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void add_block(Words& state, const std::uint8_t* bytes) {
  using std::rotr;
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i, bytes += 4)
    w[i] = std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  for (std::size_t i = 16; i < w.size(); ++i) {
    const std::uint32_t x = w[i - 15], y = w[i - 2];
    w[i] = w[i - 16] + (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + w[i - 7] + (rotr(y, 17) ^ rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const std::uint32_t one = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const std::uint32_t two = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const Words added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> bytes) {
  Words state = start;
  const std::size_t whole = bytes.size() / block_size * block_size;
  for (std::size_t i = 0; i < whole; i += block_size) add_block(state, bytes.data() + i);
  // Behind the rest come a bit, zeros, and the number of bits.
  std::array<std::uint8_t, 2 * block_size> last{};
  const std::size_t rest = bytes.size() - whole;
  std::ranges::copy(bytes.subspan(whole), last.begin());
  last[rest] = 0x80;
  const std::size_t end = rest + 9 <= block_size ? block_size : 2 * block_size;
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (std::size_t i = 0; i < 8; ++i) last[end - 1 - i] = static_cast<std::uint8_t>(bits >> (8 * i));
  for (std::size_t i = 0; i < end; i += block_size) add_block(state, last.data() + i);
  std::array<std::uint8_t, 32> digest;
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace jaxexp::wire

// Philox4x32-10, whose counter is the number of a block, so that each number can be drawn by itself. This file is
// compiled so that no multiplication and addition become one operation, which would round once and not twice.
#include "runtime/command/drawn.h"

#include <array>
#include <cstring>

#include "runtime/command/small_float.h"

namespace jaxexp::command {
namespace {

using Words = std::array<std::uint32_t, 4>;
using Distribution = Case::Drawn::Distribution;

/// The words of a block.
Words philox(std::uint64_t seed, std::uint64_t block) {
  constexpr std::uint64_t multipliers[] = {0xD2511F53, 0xCD9E8D57};
  constexpr std::uint32_t weyl[] = {0x9E3779B9, 0xBB67AE85};
  constexpr int rounds = 10;
  Words words{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0};
  auto left = static_cast<std::uint32_t>(seed), right = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < rounds; ++round, left += weyl[0], right += weyl[1]) {
    const std::uint64_t first = words[0] * multipliers[0], second = words[2] * multipliers[1];
    words = {static_cast<std::uint32_t>(second >> 32) ^ words[1] ^ left, static_cast<std::uint32_t>(second),
             static_cast<std::uint32_t>(first >> 32) ^ words[3] ^ right, static_cast<std::uint32_t>(first)};
  }
  return words;
}

/// 64 bits, of which a block has two.
std::uint64_t wide(std::uint64_t seed, std::uint64_t index) {
  const Words words = philox(seed, index / 2);
  const std::size_t at = 2 * (index % 2);
  return words[at] | std::uint64_t{words[at + 1]} << 32;
}

std::int64_t whole(const Case::Drawn& drawn, std::uint64_t index) {
  const auto low = static_cast<std::int64_t>(drawn.first), high = static_cast<std::int64_t>(drawn.second);
  return low + static_cast<std::int64_t>(wide(drawn.seed, index) % static_cast<std::uint64_t>(high - low));
}

double real(const Case::Drawn& drawn, std::uint64_t index) {
  if (drawn.distribution == Distribution::integers) return static_cast<double>(whole(drawn, index));
  if (drawn.distribution == Distribution::uniform) {
    const double u = static_cast<double>(wide(drawn.seed, index) >> 11) * 0x1p-53;
    return drawn.first + (drawn.second - drawn.first) * u;
  }
  std::int64_t sum = 4 - (1 << 18);
  for (const std::uint32_t word : philox(drawn.seed, index)) sum += (word & 0xFFFF) + (word >> 16);
  constexpr double scale = 0x1.3988e1409212ep+0;  // the root of 3/2, for a deviation of 1
  return drawn.first + drawn.second * (static_cast<double>(sum) * 0x1p-16 * scale);
}

template <class T, class Make>
std::vector<std::uint8_t> filled(std::size_t size, const Make& make) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size / sizeof(T); ++i) {
    const auto number = static_cast<T>(make(i));
    std::memcpy(bytes.data() + i * sizeof(T), &number, sizeof(T));
  }
  return bytes;
}

}  // namespace

std::vector<std::uint8_t> draw(const Case::Drawn& drawn, std::string_view dtype, std::size_t bytes) {
  const auto reals = [&]<class T>(T) { return filled<T>(bytes, [&](std::size_t i) { return real(drawn, i); }); };
  if (dtype == "float32" || dtype == "complex64") return reals(float());
  if (dtype == "float64" || dtype == "complex128") return reals(double());
  if (const SmallFloat* const format = small_float(dtype)) {
    const auto bits = [&](std::size_t i) { return format->encoded(static_cast<float>(real(drawn, i))); };
    return format->bytes() == 1 ? filled<std::uint8_t>(bytes, bits) : filled<std::uint16_t>(bytes, bits);
  }
  const auto integers = [&]<class T>(T) { return filled<T>(bytes, [&](std::size_t i) { return whole(drawn, i); }); };
  if (dtype.ends_with("64")) return integers(std::uint64_t());
  if (dtype.ends_with("32") || dtype.starts_with("key<")) return integers(std::uint32_t());
  if (dtype.ends_with("16")) return integers(std::uint16_t());
  return integers(std::uint8_t());  // int4 and bool, too
}

}  // namespace jaxexp::command

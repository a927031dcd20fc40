// XXH3 digests of 128 bits: they tell whether bytes are still those that were written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace jaxexp::wire {

/// In the canonical byte order, as xxhash's command line and libraries print it.
using Digest = std::array<std::uint8_t, 16>;

Digest digest(std::span<const std::uint8_t> bytes);

/// For hash tables: different in each process, so that nobody can choose texts that collide.
struct SeededHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};

/// Copies bytes and returns their digest, in one pass through memory.
Digest copy_and_digest(std::uint8_t* target, std::span<const std::uint8_t> bytes);

/// The digest of bytes that are never in memory together: it is fed one part after the other.
class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;

  void update(std::span<const std::uint8_t> part);
  /// Of all parts so far.
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> bytes);

}  // namespace jaxexp::wire

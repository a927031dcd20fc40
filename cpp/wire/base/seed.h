// A number that nobody outside of this process knows: who chooses keys cannot choose which of them collide.
#pragma once

#include <cstdint>
#include <random>

namespace jaxexp::wire {

inline std::uint64_t process_seed() {
  static const std::uint64_t seed = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return seed;
}

}  // namespace jaxexp::wire

// How far keys of a FlatMap are from where they should be, for many factors: keys at regular distances, as positions in
// a buffer are.
#include "wire/base/flat_map.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

int main(int, char** argv) {
  const int factors = std::atoi(argv[1]);
  std::mt19937_64 random(35);
  double worst = 0;
  for (int i = 0; i < factors; ++i) {
    jaxexp::wire::FlatMap<int> map(random());
    const std::uint64_t keys = 100 + random() % 1000, distance = 4 * (1 + random() % 64),
                        first = 4 * (1 + random() % (1 << 28));
    for (std::uint64_t key = 0; key < keys; ++key) map.insert(first + distance * key).first = static_cast<int>(key);
    double steps = 0;
    for (std::uint64_t key = 0; key < keys; ++key) {
      const auto [value, is_new] = map.insert(first + distance * key);
      if (is_new || value != static_cast<int>(key) || map.contains(first + distance * key + 1)) return 1;
      steps += static_cast<double>(map.steps(first + distance * key));
    }
    if (map.size() != keys) return 1;
    worst = std::max(worst, steps / static_cast<double>(keys));
  }
  // Whose collisions no factor prevents.
  jaxexp::wire::FlatMap<int> shifted(random());
  for (std::uint64_t key = 1; key < 1000; ++key) shifted.insert(key << 40);
  std::printf("%.1f\n", worst);
  return shifted.size() == 999 ? 0 : 1;
}

// Under libFuzzer: half of the changes are its own, half follow the layout of an artifact; and a run that costs more
// than its input allows is a fault like any other.
#include <cstdio>
#include <cstdlib>

#include "cost.h"
#include "mutate.h"
#include "target.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" int jaxexp_test_one_input(const std::uint8_t* data, std::size_t size);

namespace {

double worst = 0;

/// In the form in which driver.cpp says it.
void report() { std::fprintf(stderr, "cost: %.3f\n", worst); }

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return jaxexp::tests::mutate(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int registered = std::atexit(report);
  static_cast<void>(registered);
  const jaxexp::tests::Cost cost;
  const int result = jaxexp_test_one_input(data, size);
  const double ratio = jaxexp::tests::cost_ratio(cost.found(), size);
  if (ratio > worst) worst = ratio;
  jaxexp::tests::require(ratio <= 1, "a run costs in proportion to its input");
  return result;
}

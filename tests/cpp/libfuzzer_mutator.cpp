// Under libFuzzer: half of the changes are its own, half follow the layout of an artifact.
#include <cstddef>
#include <cstdint>

#include "mutate.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  if (seed % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return jaxexp::tests::mutate(data, size, max_size, seed);
}

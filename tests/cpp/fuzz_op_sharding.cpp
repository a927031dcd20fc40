// Fuzz target: an xla.OpSharding, and the number of devices that it has to be for.
#include <cstring>

#include "target.h"
#include "wire/base/error.h"
#include "wire/exported/op_sharding.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace jaxexp;
  std::uint32_t devices = 1;
  const std::size_t head = size < sizeof devices ? size : sizeof devices;
  std::memcpy(&devices, data, head);
  try {
    wire::read_op_sharding({data + head, size - head}, devices, {});
  } catch (const wire::Error& error) {
    tests::require(!error.expected.empty() && !error.found.empty(), "an error says what was expected and found");
  }
  return 0;
}

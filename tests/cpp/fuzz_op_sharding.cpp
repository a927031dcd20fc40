// Fuzz target: an xla.OpSharding, and the number of devices that it has to be for.
#include <cstring>

#include "errors.h"
#include "wire/exported/op_sharding.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace jaxexp;
  std::uint32_t devices = 1;
  const std::size_t head = size < sizeof devices ? size : sizeof devices;
  std::memcpy(&devices, data, head);
  tests::attempt([&] { wire::read_op_sharding({data + head, size - head}, devices, {}); });
  return 0;
}

// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. The messages are those of
// https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
#include "runtime/plugin/compile_options.h"

namespace jaxexp::runtime {
namespace {

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}

std::string field(std::uint64_t number, std::uint64_t value) { return varint(number << 3) + varint(value); }

/// A message, or a packed list of numbers.
std::string field(std::uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

}  // namespace

std::string compile_options(std::span<const int> devices, bool uses_shardy) {
  constexpr std::uint64_t executable_build_options = 3;
  constexpr std::uint64_t device_ordinal = 1, num_replicas = 4, num_partitions = 5, use_spmd_partitioning = 6,
                          device_assignment = 9, use_shardy_partitioner = 19;
  constexpr std::uint64_t replica_count = 1, computation_count = 2, computation_devices = 3, replica_device_ids = 1;

  std::string assignment = field(replica_count, 1) + field(computation_count, devices.size());
  for (const int device : devices)
    assignment += field(computation_devices, field(replica_device_ids, varint(static_cast<std::uint64_t>(device))));
  constexpr auto unspecified = static_cast<std::uint64_t>(-1);
  return field(executable_build_options,
               field(device_ordinal, unspecified) + field(num_replicas, 1) + field(num_partitions, devices.size()) +
                   field(use_spmd_partitioning, devices.size() > 1) + field(device_assignment, assignment) +
                   field(use_shardy_partitioner, uses_shardy));
}

}  // namespace jaxexp::runtime

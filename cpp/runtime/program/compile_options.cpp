// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. The messages are those of
// https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
#include "runtime/program/compile_options.h"

namespace jaxexp::runtime {
namespace {

class Message {
 public:
  Message& add(std::uint64_t field, std::uint64_t value) {
    varint(field << 3);
    varint(value);
    return *this;
  }
  Message& add(std::uint64_t field, const Message& message) {
    varint(field << 3 | 2);
    varint(message.bytes_.size());
    bytes_ += message.bytes_;
    return *this;
  }
  /// A list of one number.
  static Message list(std::uint64_t number) {
    Message message;
    message.varint(number);
    return message;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

}  // namespace

std::string compile_options(std::span<const int> devices, bool uses_shardy) {
  constexpr std::uint64_t executable_build_options = 3;
  constexpr std::uint64_t device_ordinal = 1, num_replicas = 4, num_partitions = 5, use_spmd_partitioning = 6,
                          device_assignment = 9, use_shardy_partitioner = 19;
  constexpr std::uint64_t replica_count = 1, computation_count = 2, computation_devices = 3, replica_device_ids = 1;

  Message assignment;
  assignment.add(replica_count, 1).add(computation_count, devices.size());
  for (const int device : devices)
    assignment.add(computation_devices,
                   Message().add(replica_device_ids, Message::list(static_cast<std::uint64_t>(device))));
  constexpr auto unspecified = static_cast<std::uint64_t>(-1);
  Message build;
  build.add(device_ordinal, unspecified)
      .add(num_replicas, 1)
      .add(num_partitions, devices.size())
      .add(use_spmd_partitioning, devices.size() > 1);
  build.add(device_assignment, assignment).add(use_shardy_partitioner, uses_shardy);
  return Message().add(executable_build_options, build).bytes();
}

}  // namespace jaxexp::runtime

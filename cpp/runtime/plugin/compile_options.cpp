// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. The messages are those of
// https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto and xla/xla_data.proto.
#include "runtime/plugin/compile_options.h"

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plugin/flags.h"

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

std::string field(std::uint64_t number, double value) {
  std::string bytes = varint(number << 3 | 1);
  for (auto bits = std::bit_cast<std::uint64_t>(value); bytes.size() < 9; bits >>= 8) bytes += static_cast<char>(bits);
  return bytes;
}

std::string override_value(const Client::Options::mapped_type& value) {
  constexpr std::uint64_t string_field = 1, bool_field = 2, int_field = 3, double_field = 4;
  if (const auto* const text = std::get_if<std::string>(&value)) return field(string_field, *text);
  if (const auto* const flag = std::get_if<bool>(&value)) return field(bool_field, std::uint64_t{*flag});
  if (const auto* const number = std::get_if<float>(&value)) return field(double_field, double{*number});
  return field(int_field, static_cast<std::uint64_t>(std::get<std::int64_t>(value)));
}

}  // namespace

bool folds_wrong(const Client& client) {
  const auto known = client.api().attribute("stablehlo_current_version");
  return known.size() == 3 && known < std::vector<std::int64_t>{1, 20, 0};
}

Client::Options as_in_jax(const Client& client, Client::Options options) {
  const std::string& platform = client.platform();
  const bool is_gpu = platform == "cuda" || platform == "rocm" || platform == "gpu";
  if (!is_gpu && platform != "cpu") return options;
  const std::string name = is_gpu ? "xla_gpu_enable_fast_min_max" : "xla_cpu_enable_fast_min_max";
  const auto set = [&](const std::string& option, Client::Options::mapped_type value) {
    if (xla_flags().find(option) == std::string::npos) options.emplace(option, std::move(value));
  };
  set(name, false);
  if (!is_gpu && folds_wrong(client)) set("xla_disable_hlo_passes", "constant_folding");
  return options;
}

std::string compile_options(std::span<const int> devices, bool uses_shardy, const Client::Options& overrides) {
  constexpr std::uint64_t executable_build_options = 3, env_option_overrides = 7;
  constexpr std::uint64_t name = 1, value = 2;
  constexpr std::uint64_t device_ordinal = 1, num_replicas = 4, num_partitions = 5, use_spmd_partitioning = 6,
                          device_assignment = 9, use_shardy_partitioner = 19;
  constexpr std::uint64_t replica_count = 1, computation_count = 2, computation_devices = 3, replica_device_ids = 1;

  std::string assignment =
      field(replica_count, std::uint64_t{1}) + field(computation_count, std::uint64_t{devices.size()});
  for (const int device : devices)
    assignment += field(computation_devices, field(replica_device_ids, varint(static_cast<std::uint64_t>(device))));
  constexpr auto unspecified = static_cast<std::uint64_t>(-1);
  std::string options =
      field(executable_build_options, field(device_ordinal, unspecified) + field(num_replicas, std::uint64_t{1}) +
                                          field(num_partitions, std::uint64_t{devices.size()}) +
                                          field(use_spmd_partitioning, std::uint64_t{devices.size() > 1}) +
                                          field(device_assignment, assignment) +
                                          field(use_shardy_partitioner, std::uint64_t{uses_shardy}));
  for (const auto& [option, it] : overrides)
    options += field(env_option_overrides, field(name, option) + field(value, override_value(it)));
  return options;
}

}  // namespace jaxexp::runtime

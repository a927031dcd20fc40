// The message is that of
// https://github.com/openxla/xla/blob/main/xla/xla_data.proto.
#include "wire/exported/op_sharding.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "wire/base/protobuf.h"

namespace jaxexp::wire {
namespace {

enum Field : std::uint64_t {
  type = 1,
  tile_assignment_dimensions = 3,
  tile_assignment_devices = 4,
  replicate_on_last_tile_dim = 6,
  metadata = 7,
  last_tile_dims = 8,
  iota_reshape_dims = 9,
  iota_transpose_perm = 10,
};

using Numbers = OpSharding::Numbers;

OpSharding parsed(std::span<const std::uint8_t> proto, const Path& path) {
  const auto refuse = [&] { throw Error(path, "an xla.OpSharding", "bytes that are not one"); };
  OpSharding sharding;
  const auto list = [&](std::uint64_t field) -> Numbers& {
    switch (field) {
      case tile_assignment_dimensions: return sharding.dimensions;
      case tile_assignment_devices: return sharding.devices;
      case last_tile_dims: return sharding.last_dims;
      case iota_reshape_dims: return sharding.reshape;
      case iota_transpose_perm: return sharding.permutation;
      default: throw Error(path, "an xla.OpSharding of one array", "one with field " + std::to_string(field));
    }
  };
  const auto fields = protobuf::fields({reinterpret_cast<const char*>(proto.data()), proto.size()});
  if (!fields) refuse();
  for (const auto& [field, kind, value, bytes] : *fields) {
    if (field == metadata && kind == protobuf::Field::with_length) continue;
    if (kind == protobuf::Field::with_length) {
      Numbers& numbers = list(field);
      for (std::string_view packed = bytes; !packed.empty();) {
        const auto number = protobuf::varint(packed);
        if (!number) refuse();
        numbers.push_back(*number);
      }
    } else if (kind != protobuf::Field::varint) {
      refuse();
    } else if (field == type) {
      sharding.type = value;
    } else if (field == replicate_on_last_tile_dim) {
      sharding.replicate_on_last = value != 0;
    } else {
      list(field).push_back(value);
    }
  }
  return sharding;
}

/// Whether these are the numbers from 0 to their count, in any order.
bool is_permutation(const Numbers& numbers) {
  std::vector<bool> seen(numbers.size());
  return std::ranges::all_of(numbers, [&](std::uint64_t n) {
    const bool is_new = n < seen.size() && !seen[n];
    if (is_new) seen[n] = true;
    return is_new;
  });
}

/// Whether the factors are positive and have this product.
bool multiply_to(const Numbers& factors, std::uint64_t product) {
  for (std::uint64_t factor : factors) {
    if (factor == 0 || product % factor != 0) return false;
    product /= factor;
  }
  return product == 1;
}

}  // namespace

OpSharding read_op_sharding(std::span<const std::uint8_t> proto, std::uint32_t device_count, const Path& path) {
  OpSharding s = parsed(proto, path);
  const auto expect = [&](bool holds, const std::string& expected, const std::string& found) {
    if (!holds) throw Error(path, "an xla.OpSharding " + expected, found);
  };
  if (s.type == OpSharding::replicated || s.type == OpSharding::maximal) {
    const bool on_one = s.type == OpSharding::maximal;
    expect(s.devices.size() == on_one && multiply_to(s.dimensions, 1) && s.reshape.empty() && s.permutation.empty() &&
               s.last_dims.empty() && !s.replicate_on_last,
           on_one ? "on one device" : "that is replicated", "tiles");
    expect(!on_one || s.devices.front() < device_count, "on a device below " + std::to_string(device_count),
           on_one ? std::to_string(s.devices.front()) : "");
    return s;
  }
  expect(s.type == OpSharding::other, "that is replicated, on one device or tiled", "type " + std::to_string(s.type));
  expect(!s.dimensions.empty() && multiply_to(s.dimensions, device_count),
         "with " + std::to_string(device_count) + " tiles, one for each device", "a different number of tiles");
  expect(s.last_dims.size() + s.replicate_on_last <= s.dimensions.size() &&
             std::ranges::all_of(s.last_dims, [](std::uint64_t t) { return t <= OpSharding::last_type; }),
         "with known types of its last tile dimensions", "unknown types, or too many");
  if (s.devices.empty())
    expect(multiply_to(s.reshape, device_count) && !s.reshape.empty() && s.permutation.size() == s.reshape.size() &&
               is_permutation(s.permutation),
           "with an order of its devices", "no such order");
  else
    expect(s.devices.size() == device_count && is_permutation(s.devices) && s.reshape.empty() && s.permutation.empty(),
           "that names each device once", "different numbers");
  return s;
}

}  // namespace jaxexp::wire

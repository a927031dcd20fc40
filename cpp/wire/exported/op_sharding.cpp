// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding. The message is that of
// https://github.com/openxla/xla/blob/main/xla/xla_data.proto.
#include "wire/exported/op_sharding.h"

#include <algorithm>
#include <string>
#include <vector>

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

class Reader {
 public:
  Reader(std::span<const std::uint8_t> bytes, const Path& path) : bytes_(bytes), path_(path) {}

  OpSharding message() {
    OpSharding sharding;
    while (!bytes_.empty()) {
      constexpr std::uint64_t varint_type = 0, bytes_type = 2;
      const std::uint64_t tag = varint(bytes_), field = tag >> 3, wire_type = tag & 7;
      if (field == metadata && wire_type == bytes_type) {
        part();
      } else if (wire_type == bytes_type) {
        Numbers& numbers = list(sharding, field);
        for (auto packed = part(); !packed.empty();) numbers.push_back(varint(packed));
      } else if (wire_type != varint_type) {
        refuse();
      } else if (const std::uint64_t value = varint(bytes_); field == type) {
        sharding.type = value;
      } else if (field == replicate_on_last_tile_dim) {
        sharding.replicate_on_last = value != 0;
      } else {
        list(sharding, field).push_back(value);
      }
    }
    return sharding;
  }

  [[noreturn]] void refuse() const { throw Error(path_, "an xla.OpSharding", "bytes that are none"); }

 private:
  Numbers& list(OpSharding& sharding, std::uint64_t field) const {
    switch (field) {
      case tile_assignment_dimensions: return sharding.dimensions;
      case tile_assignment_devices: return sharding.devices;
      case last_tile_dims: return sharding.last_dims;
      case iota_reshape_dims: return sharding.reshape;
      case iota_transpose_perm: return sharding.permutation;
      default: throw Error(path_, "an xla.OpSharding of one array", "one with field " + std::to_string(field));
    }
  }

  std::span<const std::uint8_t> part() {
    const std::uint64_t size = varint(bytes_);
    if (size > bytes_.size()) refuse();
    const auto found = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return found;
  }

  std::uint64_t varint(std::span<const std::uint8_t>& bytes) const {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
      const std::uint8_t byte = bytes.front();
      bytes = bytes.subspan(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }

  std::span<const std::uint8_t> bytes_;
  const Path& path_;
};

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
  OpSharding s = Reader(proto, path).message();
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
         "whose tiles are " + std::to_string(device_count) + ", one for each device", "others");
  expect(s.last_dims.size() + s.replicate_on_last <= s.dimensions.size() &&
             std::ranges::all_of(s.last_dims, [](std::uint64_t t) { return t <= OpSharding::last_type; }),
         "whose last tile dimensions are tile dimensions", "others");
  if (s.devices.empty())
    expect(multiply_to(s.reshape, device_count) && !s.reshape.empty() && s.permutation.size() == s.reshape.size() &&
               is_permutation(s.permutation),
           "with an order of its devices", "none");
  else
    expect(s.devices.size() == device_count && is_permutation(s.devices) && s.reshape.empty() && s.permutation.empty(),
           "that names each device once", "other numbers");
  return s;
}

}  // namespace jaxexp::wire

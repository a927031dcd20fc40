// An xla.OpSharding, the only form of shardings in artifacts from before JAX 0.9: checked before XLA sees it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/base/error.h"

namespace jaxexp::wire {

struct OpSharding {
  enum Type : std::uint64_t { replicated = 0, maximal = 1, other = 3, last_type = 6 };
  using Numbers = std::vector<std::uint64_t>;

  std::uint64_t type = replicated;
  bool replicate_on_last = false;
  /// Of an array of tiles: its dimensions, and its devices, or how numbers in order are reshaped and transposed to
  /// them.
  Numbers dimensions, devices, last_dims, reshape, permutation;

  /// How many of the dimensions divide dimensions of the array. Devices that differ only in the others have the same.
  std::size_t rank() const { return dimensions.size() - last_dims.size() - replicate_on_last; }
};

/// Throws Error unless the bytes are a sharding that is replicated, on one device, or tiles `devices` devices.
/// XLA ends the process for some that are none of these.
OpSharding read_op_sharding(std::span<const std::uint8_t> proto, std::uint32_t device_count, const Path& path);

}  // namespace jaxexp::wire

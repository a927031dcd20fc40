// How an argument or a result is divided among the devices of a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jaxexp/artifact.h"

namespace jaxexp::runtime {

/// A grid of tiles of equal size, of which each device has one. Without tiles each device has all of the array.
class Tiling {
 public:
  /// Throws RunError for what cannot be run: an array on one of several devices.
  Tiling(const Value& value, std::uint32_t nr_devices);
  /// From an xla.OpSharding. Throws RunError for what cannot be run, or read.
  Tiling(std::span<const std::uint8_t> op_sharding, std::uint32_t nr_devices, const std::string& path);

  bool is_specified() const { return is_specified_; }
  bool is_whole() const { return tiles_.empty(); }

  /// What a device has of an array: where it begins, and its shape. Throws RunError where a dimension cannot be
  /// divided.
  std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> part(const std::vector<std::int64_t>& shape,
                                                                       std::size_t device,
                                                                       const std::string& path) const;

 private:
  bool is_specified_;
  std::vector<std::int64_t> tiles_;                   // in each dimension that is divided at all; fewer than all may be
  std::vector<std::vector<std::int64_t>> of_device_;  // the indices of its tile
};

}  // namespace jaxexp::runtime

// Devices are numbered as in the mesh, row-major.
#include "runtime/signature/tiling.h"

#include <algorithm>

#include "jaxexp/run_error.h"
#include "wire/exported/op_sharding.h"

namespace jaxexp::runtime {
namespace {

std::vector<std::int64_t> unravel(std::uint64_t number, const std::vector<std::uint64_t>& grid) {
  std::vector<std::int64_t> indices(grid.size());
  for (std::size_t d = grid.size(); d-- > 0; number /= grid[d])
    indices[d] = static_cast<std::int64_t>(number % grid[d]);
  return indices;
}

std::vector<std::uint64_t> devices_of(const wire::OpSharding& sharding, std::uint32_t nr_devices) {
  if (!sharding.devices.empty()) return sharding.devices;
  // 0, 1, 2, ... reshaped, and then transposed.
  const std::size_t rank = sharding.reshape.size();
  std::vector<std::uint64_t> strides(rank, 1), transposed(rank);
  for (std::size_t d = rank; d-- > 1;) strides[d - 1] = strides[d] * sharding.reshape[d];
  for (std::size_t d = 0; d < rank; ++d) transposed[d] = sharding.reshape[sharding.permutation[d]];
  std::vector<std::uint64_t> devices;
  for (std::uint64_t i = 0; i < nr_devices; ++i) {
    const auto indices = unravel(i, transposed);
    std::uint64_t device = 0;
    for (std::size_t d = 0; d < rank; ++d)
      device += static_cast<std::uint64_t>(indices[d]) * strides[sharding.permutation[d]];
    devices.push_back(device);
  }
  return devices;
}

}  // namespace

Tiling::Tiling(const Value& value, std::uint32_t nr_devices)
    : is_specified_(value.sharding || !value.op_sharding.empty()), of_device_(nr_devices) {
  if (nr_devices == 1 || !is_specified_) return;
  if (!value.sharding) {
    *this = Tiling(value.op_sharding, nr_devices, value.path);
    return;
  }
  const Sharding& sharding = *value.sharding;
  if (!sharding.unreduced.empty())
    throw RunError(RunError::Reason::unsupported,
                   value.path + " is unreduced over the mesh axis " + std::string(sharding.unreduced.front()) +
                       ": no device has its numbers; export a function that adds them up");
  std::vector<std::uint64_t> grid;
  for (const MeshAxis& axis : sharding.mesh) grid.push_back(axis.size);
  std::vector<std::vector<std::size_t>> axes;  // of the mesh, for each dimension
  for (const auto& names : sharding.partitions) {
    auto& found = axes.emplace_back();
    tiles_.push_back(1);
    for (const std::string_view name : names) {
      const auto axis = std::ranges::find(sharding.mesh, name, &MeshAxis::name);
      found.push_back(static_cast<std::size_t>(axis - sharding.mesh.begin()));
      tiles_.back() *= axis->size;
    }
  }
  for (std::uint32_t device = 0; device < nr_devices; ++device) {
    const auto indices = unravel(device, grid);
    for (const auto& dimension : axes) {
      std::int64_t tile = 0;
      for (const std::size_t axis : dimension) tile = tile * static_cast<std::int64_t>(grid[axis]) + indices[axis];
      of_device_[device].push_back(tile);
    }
  }
}

Tiling::Tiling(std::span<const std::uint8_t> op_sharding, std::uint32_t nr_devices, const std::string& path)
    : is_specified_(true), of_device_(nr_devices) {
  wire::OpSharding sharding;
  try {
    sharding = wire::read_op_sharding(op_sharding, nr_devices, {});
  } catch (const wire::Error& error) {
    throw RunError(RunError::Reason::unsupported,
                   path + " is divided among devices in a way that is not known: expected " + error.expected +
                       ", found " + error.found);
  }
  if (sharding.type == wire::OpSharding::replicated) return;
  if (sharding.type == wire::OpSharding::maximal)
    throw RunError(RunError::Reason::unsupported, path + " is on one of " + std::to_string(nr_devices) +
                                                      " devices, and the runtime divides or copies arrays among all");
  const auto devices = devices_of(sharding, nr_devices);
  for (std::size_t d = 0; d < sharding.rank(); ++d) tiles_.push_back(static_cast<std::int64_t>(sharding.dimensions[d]));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    auto indices = unravel(i, sharding.dimensions);
    indices.resize(sharding.rank());
    of_device_[devices[i]] = std::move(indices);
  }
}

std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> Tiling::part(const std::vector<std::int64_t>& shape,
                                                                             std::size_t device,
                                                                             const std::string& path) const {
  std::vector<std::int64_t> start(shape.size(), 0), size = shape;
  // PRNG keys have dimensions of their own behind these.
  for (std::size_t d = 0; d < std::min(tiles_.size(), shape.size()); ++d) {
    if (shape[d] % tiles_[d] != 0)
      throw RunError(RunError::Reason::argument, path + ".shape[" + std::to_string(d) + "] is " +
                                                     std::to_string(shape[d]) + ", which " + std::to_string(tiles_[d]) +
                                                     " devices cannot share equally");
    size[d] = shape[d] / tiles_[d];
    start[d] = size[d] * of_device_[device][d];
  }
  return {start, size};
}

}  // namespace jaxexp::runtime

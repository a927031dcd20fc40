// The messages are those of
// https://github.com/openxla/xla/blob/main/xla/service/hlo.proto and xla/xla_data.proto.
#include "runtime/plugin/hlo_shardings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "jaxexp/run_error.h"
#include "wire/base/protobuf.h"

namespace jaxexp::runtime {
namespace {

namespace protobuf = wire::protobuf;
using protobuf::Field;

enum HloModule : std::uint64_t { spmd_output_sharding = 12, spmd_parameters_shardings = 14 };
enum OpSharding : std::uint64_t {
  type = 1,
  tile_assignment_dimensions = 3,
  tile_assignment_devices = 4,
  tuple_shardings = 5,
  replicate_on_last_tile_dim = 6,
  named_sharding = 14
};
enum NamedSharding : std::uint64_t { mesh = 2, dim_shardings = 3, unreduced_axes = 5, manual_axes = 7 };
enum Mesh : std::uint64_t { mesh_axes = 1, device_ids = 2 };
enum : std::uint64_t { axis_size = 2, dim_axes = 1 };
enum AxisRef : std::uint64_t { mesh_axis_index = 1, sub_axis_info = 2 };
enum SubAxis : std::uint64_t { pre_size = 1, sub_size = 2 };
constexpr std::uint64_t module_with_config_module = 1, maximal = 1, tuple = 2, other = 3, most_devices = 1 << 20;

[[noreturn]] void refuse() {
  throw RunError(RunError::Reason::plugin, "the plugin shows a compiled module that cannot be read");
}

std::uint64_t varint(std::string_view& message) {
  if (const auto value = protobuf::varint(message)) return *value;
  refuse();
}

std::vector<Field> fields(std::string_view message) {
  if (auto found = protobuf::fields(message)) return *std::move(found);
  refuse();
}

/// The last number with this field's number, or `otherwise`.
std::uint64_t number(const std::vector<Field>& message, std::uint64_t field, std::uint64_t otherwise = 0) {
  const auto found = std::ranges::find(message.rbegin(), message.rend(), field, &Field::number);
  return found == message.rend() ? otherwise : found->value;
}

void put(std::string& text, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) text.push_back(static_cast<char>(value | 0x80));
  text.push_back(static_cast<char>(value));
}

void put_field(std::string& text, std::uint64_t field, std::uint64_t value) { put(text, field << 3), put(text, value); }

/// What newer plugins say by axes of a mesh, by tiles, as older ones say it. Devices that differ in other axes only
/// have the same tile.
std::string as_tiles(std::string_view sharding) {
  std::vector<std::uint64_t> axes, ids;
  struct Part {
    std::size_t axis;
    std::uint64_t behind, size;  // how many devices in a row are in the same part, and how many parts there are
  };
  std::vector<std::vector<Part>> dimensions;
  std::uint64_t devices = 1;
  const auto message = fields(sharding);
  for (const Field& field : message)
    if (field.number == mesh)
      for (const Field& of_mesh : fields(field.bytes)) {
        if (of_mesh.number == mesh_axes) {
          axes.push_back(number(fields(of_mesh.bytes), axis_size));
          if (axes.back() == 0 || axes.back() > most_devices / devices) refuse();
          devices *= axes.back();
        } else if (of_mesh.number == device_ids) {  // all in one field, as these lists are
          for (std::string_view packed = of_mesh.bytes; !packed.empty();) ids.push_back(varint(packed));
        }
      }
  if (axes.empty() && ids.size() == 1) {
    std::string text;
    put_field(text, type, maximal);
    put_field(text, tile_assignment_dimensions, 1);
    put_field(text, tile_assignment_devices, ids.front());
    return text;
  }
  if (ids.empty())
    for (std::uint64_t id = 0; id < devices; ++id) ids.push_back(id);
  if (ids.size() != devices) refuse();
  for (const Field& field : message) {
    if (field.number == unreduced_axes || field.number == manual_axes)
      throw RunError(RunError::Reason::unsupported, "the parts of a result on the devices do not make an array");
    if (field.number != dim_shardings) continue;
    auto& parts = dimensions.emplace_back();
    for (const Field& axis : fields(field.bytes)) {
      if (axis.number != dim_axes) continue;
      const auto reference = fields(axis.bytes);
      const std::uint64_t index = number(reference, mesh_axis_index);
      if (index >= axes.size()) refuse();
      std::uint64_t before = 1, size = axes[index];
      for (const Field& part : reference)
        if (part.number == sub_axis_info) {
          before = number(fields(part.bytes), pre_size);
          size = number(fields(part.bytes), sub_size);
        }
      if (before == 0 || size == 0 || before > axes[index] || axes[index] / before % size != 0) refuse();
      parts.push_back({static_cast<std::size_t>(index), axes[index] / before / size, size});
    }
  }
  std::vector<std::uint64_t> tiles(dimensions.size(), 1);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> placed;  // the tile of each device
  for (std::uint64_t i = 0; i < devices; ++i) {
    std::vector<std::uint64_t> at(axes.size());
    std::uint64_t left = i, tile = 0;
    for (std::size_t a = axes.size(); a-- > 0; left /= axes[a]) at[a] = left % axes[a];
    for (std::size_t d = 0; d < dimensions.size(); ++d) {
      tiles[d] = 1;
      for (const Part& part : dimensions[d]) {
        tile = tile * part.size + at[part.axis] / part.behind % part.size;
        tiles[d] *= part.size;
      }
    }
    placed.emplace_back(tile, ids[i]);
  }
  std::uint64_t count = 1;
  for (const std::uint64_t size : tiles) count *= size;
  if (count == 1) return {};
  if (devices % count != 0) refuse();
  std::ranges::stable_sort(placed, {}, &std::pair<std::uint64_t, std::uint64_t>::first);
  std::string text;
  put_field(text, type, other);
  for (const std::uint64_t size : tiles) put_field(text, tile_assignment_dimensions, size);
  if (devices > count) put_field(text, tile_assignment_dimensions, devices / count);
  for (const auto& [tile, id] : placed) put_field(text, tile_assignment_devices, id);
  if (devices > count) put_field(text, replicate_on_last_tile_dim, 1);
  return text;
}

std::string of_one_array(std::string_view sharding) {
  for (const Field& field : fields(sharding))
    if (field.number == named_sharding) return as_tiles(field.bytes);
  return std::string(sharding);
}

std::vector<std::string> results_of(std::string_view sharding) {
  std::vector<std::string> parts;
  bool is_tuple = false;
  for (const Field& field : fields(sharding)) {
    if (field.number == type) is_tuple = field.value == tuple;
    if (field.number == tuple_shardings) parts.push_back(of_one_array(field.bytes));
  }
  return is_tuple ? parts : std::vector<std::string>{of_one_array(sharding)};
}

}  // namespace

HloShardings read_hlo_shardings(std::string_view program, std::string_view format) {
  std::string_view module = program;
  if (format == "hlo_with_config") {
    for (const Field& field : fields(program))
      if (field.number == module_with_config_module) module = field.bytes;
  } else if (format != "hlo") {
    throw RunError(RunError::Reason::unsupported,
                   "the plugin shows compiled modules as " + std::string(format) + ", where HLO is expected");
  }
  HloShardings shardings;
  for (const Field& field : fields(module)) {
    if (field.number == spmd_parameters_shardings) shardings.parameters.push_back(of_one_array(field.bytes));
    if (field.number == spmd_output_sharding) shardings.results = results_of(field.bytes);
  }
  return shardings;
}

}  // namespace jaxexp::runtime

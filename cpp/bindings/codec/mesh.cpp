// AbstractMesh <-> jax.sharding.AbstractMesh (also from a Mesh), and AbstractDevice <-> its device.
#include <algorithm>
#include <limits>

#include "bindings/base/errors.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

Offset<schema::AbstractMesh> Encoder::mesh(nb::handle mesh) {
  std::uint32_t& offset = known(meshes_, mesh);
  if (offset != 0) return offset;
  const nb::object abstract_mesh = mesh.attr(names_.abstract_mesh);  // an AbstractMesh gives itself
  constexpr std::uint64_t largest = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> sizes;
  for (nb::handle size : abstract_mesh.attr(names_.axis_sizes))
    sizes.push_back(static_cast<std::uint32_t>(integer(size, 0, largest, "the size of a mesh axis")));
  Offsets<wire::String> axis_names;
  for (nb::handle name : abstract_mesh.attr(names_.axis_names))
    axis_names.push_back(string(name, "the name of a mesh axis"));
  std::vector<schema::AxisType> types;
  for (nb::handle type : abstract_mesh.attr(names_.axis_types)) {
    const auto known_type = std::ranges::find_if(jax_.axis_types, [&](const auto& t) { return t.is(type); });
    if (known_type == jax_.axis_types.end())
      refuse("the type of a mesh axis has to be one of JAX's, found " + describe(type));
    types.push_back(static_cast<schema::AxisType>(1 + (known_type - jax_.axis_types.begin())));
  }
  const nb::object abstract_device = abstract_mesh.attr(names_.abstract_device);
  const auto device = abstract_device.is_none() ? Offset<schema::AbstractDevice>() : this->device(abstract_device);

  const auto size_vector = writer_.scalars<std::uint32_t>(sizes);
  const auto name_vector = writer_.offsets<wire::String>(axis_names);
  const auto type_vector = writer_.scalars<schema::AxisType>(types);
  const auto table = writer_.table<schema::AbstractMesh>(
      wire::Table::mesh, {size_vector.o, name_vector.o, type_vector.o, device.o},
      [&] { return schema::CreateAbstractMesh(writer_.fbb(), size_vector, name_vector, type_vector, device); });
  return offset = table.o;
}

Offset<schema::AbstractDevice> Encoder::device(nb::handle abstract_device) {
  const auto kind = string(abstract_device.attr(names_.device_kind), "device_kind");
  const nb::object platform_name = abstract_device.attr(names_.platform);
  const auto platform = platform_name.is_none() ? Offset<wire::String>() : string(platform_name, "a device's platform");
  const nb::object cores = abstract_device.attr(names_.num_cores);
  flatbuffers::Optional<std::uint32_t> num_cores;
  if (!cores.is_none())
    num_cores = static_cast<std::uint32_t>(integer(cores, 0, std::numeric_limits<std::uint32_t>::max(), "num_cores"));
  // Not shared: different meshes with one device cost only a few bytes more.
  return schema::CreateAbstractDevice(writer_.fbb(), kind, num_cores, platform);
}

nb::object Decoder::mesh(const schema::AbstractMesh& mesh, const wire::Path& where) {
  const auto [object, is_new] = meshes_.insert(position(mesh));
  if (!is_new) return object;
  const nb::object sizes = tuple_of(
      mesh.axis_sizes(), [](std::uint32_t size, std::uint32_t) { return owned(PyLong_FromUnsignedLong(size)); });
  const nb::object axis_names = strings(mesh.axis_names());
  const nb::object types = tuple_of(mesh.axis_types(), [&](schema::AxisType type, std::uint32_t) {
    return jax_.axis_types[static_cast<std::size_t>(type) - 1];
  });
  const nb::object device =
      mesh.abstract_device() ? this->device(*mesh.abstract_device(), {&where, "abstract_device"}) : nb::none();
  return object = reading(where, "axes that make a mesh", [&] {
           return jax_.AbstractMesh(sizes, axis_names, types, nb::arg("abstract_device") = device);
         });
}

nb::object Decoder::device(const schema::AbstractDevice& device, const wire::Path& where) {
  const nb::object platform = device.platform()
                                  ? string(*device.platform())
                                  : nb::object(nb::str(platform_of_kind(device.device_kind()->str(), where)));
  const nb::object cores = device.num_cores() ? nb::object(nb::int_(*device.num_cores())) : nb::none();
  return reading(where, "values that make a device",
                 [&] { return jax_.AbstractDevice(string(*device.device_kind()), cores, platform); });
}

const char* Decoder::platform_of_kind(std::string kind, const wire::Path& where) {
  std::ranges::transform(kind, kind.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto contains = [&](const char* part) { return kind.find(part) != std::string::npos; };
  if (contains("cpu")) return "cpu";
  if (contains("tpu")) return "tpu";
  if (contains("nvidia") || contains("tesla") || contains("amd")) return "gpu";
  throw wire::Error({&where, "device_kind"}, "the kind of a CPU, GPU or TPU, as there is no platform",
                    "'" + wire::shortened(kind) + "'");
}

}  // namespace jaxexp::bindings

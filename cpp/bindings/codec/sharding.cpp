// NamedSharding and Sharding <-> jax.sharding.NamedSharding, or None where a sharding is unspecified.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "bindings/base/errors.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

// AbstractMesh <-> jax.sharding.AbstractMesh (also from a Mesh), and AbstractDevice <-> its device.

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

// PartitionSpec and PartitionSpecOneAxis <-> jax.sharding.PartitionSpec.

Offset<schema::PartitionSpec> Encoder::partition_spec(nb::handle spec) {
  std::uint32_t& offset = known(specs_, spec);
  if (offset != 0) return offset;
  Offsets<schema::PartitionSpecOneAxis> axes;
  for (nb::handle partition : spec.attr(names_._partitions)) axes.push_back(one_axis(partition));
  const auto partitions = writer_.offsets<schema::PartitionSpecOneAxis>(axes);
  const auto reduced = axis_set(spec.attr(names_.reduced));
  const nb::object unreduced_names = spec.attr(names_.unreduced);
  const auto unreduced = axis_set(unreduced_names);
  if (nb::len(unreduced_names) > 0) {
    const nb::object kind = nb::getattr(spec, "unreduced_kind", nb::none());
    if (!kind.is_none() && !kind.attr("name").equal(nb::str("sum")))
      refuse("the format holds axes that are unreduced by a sum, found " + describe(kind));
  }
  const auto table = writer_.table<schema::PartitionSpec>(
      wire::Table::spec, {partitions.o, reduced.o, unreduced.o},
      [&] { return schema::CreatePartitionSpec(writer_.fbb(), partitions, reduced, unreduced); });
  return offset = table.o;
}

Offset<schema::PartitionSpecOneAxis> Encoder::one_axis(nb::handle partition) {
  Offsets<wire::String> axes;
  if (PyTuple_Check(partition.ptr())) {
    for (nb::handle axis : nb::borrow<nb::tuple>(partition))
      axes.push_back(string(axis, "a mesh axis in a PartitionSpec"));
  } else if (PyUnicode_Check(partition.ptr())) {
    axes.push_back(string(partition, "a mesh axis in a PartitionSpec"));
  } else if (!partition.is_none()) {
    refuse("each entry of a PartitionSpec has to be None, the name of a mesh axis or a tuple of names, found " +
               describe(partition),
           Also::type_error);
  }
  const auto names = writer_.offsets<wire::String>(axes);
  return writer_.table<schema::PartitionSpecOneAxis>(
      wire::Table::axis, {names.o}, [&] { return schema::CreatePartitionSpecOneAxis(writer_.fbb(), names); });
}

OffsetVector<wire::String> Encoder::axis_set(nb::handle names) {
  std::vector<std::string_view> sorted;  // views into strings that the set keeps alive
  for (nb::handle name : names) sorted.push_back(utf8(name, "a reduced or unreduced mesh axis"));
  std::ranges::sort(sorted);
  Offsets<wire::String> offsets;
  for (std::string_view name : sorted) offsets.push_back(writer_.string(name));
  return writer_.offsets<wire::String>(offsets);
}

nb::object Decoder::partition_spec(const schema::PartitionSpec& spec, const wire::Path& where) {
  const auto [object, is_new] = specs_.insert(position(spec));
  if (!is_new) return object;
  const nb::object partitions = tuple_of(
      spec.partitions(), [&](const schema::PartitionSpecOneAxis& axis, std::uint32_t) { return one_axis(axis); });
  const nb::object reduced = owned(PyFrozenSet_New(strings(spec.reduced()).ptr()));
  const nb::object unreduced = owned(PyFrozenSet_New(strings(spec.unreduced()).ptr()));
  return object = reading(where, "axes that make a PartitionSpec", [&] {
           return jax_.PartitionSpec(*partitions, nb::arg("reduced") = reduced, nb::arg("unreduced") = unreduced);
         });
}

nb::object Decoder::one_axis(const schema::PartitionSpecOneAxis& axis) {
  switch (wire::Values::length(axis.axes())) {
    case 0: return nb::none();
    case 1: return string(*axis.axes()->Get(0));
    default: return strings(axis.axes());
  }
}

namespace {

/// All that a NamedSharding says, in bytes that no other one has.
class ShardingKey {
 public:
  ShardingKey(const schema::NamedSharding& sharding, const schema::AbstractMesh& mesh) {
    add_each(mesh.axis_sizes());
    add_each(mesh.axis_names());
    add_each(mesh.axis_types());
    const schema::AbstractDevice* const device = mesh.abstract_device();
    add(device != nullptr);
    if (device) {
      const auto cores = device->num_cores();
      add(device->device_kind());
      add(cores.has_value());
      add(cores.value_or(0));
      add(device->platform());
    }
    add_each(sharding.spec()->partitions());
    add_each(sharding.spec()->reduced());
    add_each(sharding.spec()->unreduced());
    add(sharding.memory_kind());
  }

  /// Empty where it would be long: tables may refer to one long name or list many times.
  std::string_view key() const { return key_.size() > max_size ? std::string_view() : key_; }

 private:
  static constexpr std::size_t max_size = 1024;

  template <class Vector>
  void add_each(const Vector* vector) {
    const std::uint32_t size = wire::Values::length(vector);
    add(size);
    for (std::uint32_t i = 0; i < size && key_.size() <= max_size; ++i) add(vector->Get(i));
  }
  void add(std::uint32_t number) { key_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void add(schema::AxisType type) { add(static_cast<std::uint32_t>(type)); }
  void add(const schema::PartitionSpecOneAxis* axis) { add_each(axis->axes()); }
  void add(const flatbuffers::String* text) {
    add(text != nullptr);
    if (!text) return;
    add(text->size());
    key_.append(text->string_view().substr(0, max_size));
  }

  std::string key_;
};

}  // namespace

Offset<schema::NamedSharding> Encoder::named_sharding(nb::handle sharding) {
  std::uint32_t& offset = known(named_shardings_, sharding);
  if (offset != 0) return offset;
  if (!sharding.type().is(jax_.NamedSharding) && !nb::isinstance(sharding, jax_.NamedSharding))
    refuse("a sharding has to be a NamedSharding or None, found " + describe(sharding), Also::type_error);
  const auto mesh = this->mesh(sharding.attr(names_.mesh));
  const std::uint32_t mesh_index = distinct_meshes_.number(mesh) - 1;
  const auto spec = partition_spec(sharding.attr(names_.spec));
  const nb::object kind = sharding.attr(names_.memory_kind);
  const auto memory_kind = kind.is_none() ? Offset<wire::String>() : string(kind, "memory_kind");
  const auto table = writer_.table<schema::NamedSharding>(
      wire::Table::named_sharding, {mesh.o, spec.o, memory_kind.o, mesh_index},
      [&] { return schema::CreateNamedSharding(writer_.fbb(), mesh, spec, memory_kind, mesh_index); });
  return offset = table.o;
}

Offset<schema::Sharding> Encoder::sharding(Offset<schema::NamedSharding> named_sharding) {
  return writer_.table<schema::Sharding>(wire::Table::sharding, {named_sharding.o}, [&] {
    return schema::CreateSharding(writer_.fbb(), schema::ShardingKind::unspecified, 0, named_sharding);
  });
}

Offset<schema::Sharding> Encoder::sharding(Offset<schema::NamedSharding> named_sharding, nb::handle hlo_sharding) {
  const nb::object proto = jax_.proto_of_sharding(hlo_sharding);
  if (!PyBytes_Check(proto.ptr()))
    refuse("an xla.OpSharding has to be bytes, found " + describe(proto), Also::type_error);
  const auto* data = reinterpret_cast<const std::int8_t*>(PyBytes_AS_STRING(proto.ptr()));
  const auto bytes = writer_.scalars(std::span(data, static_cast<std::size_t>(PyBytes_GET_SIZE(proto.ptr()))));
  return writer_.table<schema::Sharding>(wire::Table::sharding, {named_sharding.o, bytes.o}, [&] {
    return schema::CreateSharding(writer_.fbb(), schema::ShardingKind::hlo_sharding, bytes, named_sharding);
  });
}

nb::object Decoder::named_sharding(const schema::NamedSharding& sharding, const wire::Path& where) {
  const auto [object, is_new] = named_shardings_.insert(position(sharding));
  if (!is_new) return object;
  const auto* meshes = exported_.unique_abstract_meshes();
  const schema::AbstractMesh& mesh =
      wire::Values::length(meshes) > 0 ? *meshes->Get(sharding.abstract_mesh_idx()) : *sharding.mesh();
  const ShardingKey known(sharding, mesh);
  const std::string_view key = known.key();
  if (!key.empty()) object = jax_.shardings.find(key);
  if (object.is_valid()) return object;
  const nb::object made_mesh = this->mesh(mesh, {&where, "mesh"});
  const nb::object spec = partition_spec(*sharding.spec(), {&where, "spec"});
  const nb::object memory_kind = sharding.memory_kind() ? string(*sharding.memory_kind()) : nb::none();
  object = reading(where, "a mesh and spec that make a NamedSharding",
                   [&] { return jax_.NamedSharding(made_mesh, spec, nb::arg("memory_kind") = memory_kind); });
  constexpr std::size_t bytes_of_sharding = 2048;  // with a mesh of its own
  if (!key.empty()) jax_.shardings.insert(key, object, bytes_of_sharding);
  return object;
}

nb::object Decoder::hlo_sharding(const flatbuffers::Vector<std::int8_t>& proto, const nb::object& aval,
                                 const wire::Path& where) {
  return reading(where, "an xla.OpSharding", [&] { return jax_.sharding_of_proto(bytes(proto), aval); });
}

}  // namespace jaxexp::bindings

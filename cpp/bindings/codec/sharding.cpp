// NamedSharding and Sharding <-> jax.sharding.NamedSharding, or None where a sharding is unspecified.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "bindings/base/errors.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {
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

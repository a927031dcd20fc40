// Each mesh and each sharding is checked once for a function.
#include "wire/exported/check_shardings.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "wire/exported/limits.h"
#include "wire/exported/op_sharding.h"
#include "wire/exported/requirements.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

using std::to_string;

std::uint64_t ShardingCheck::mesh(const schema::AbstractMesh& mesh, const Path& path) {
  if (const auto [devices, is_new] = meshes_.insert(reinterpret_cast<std::uintptr_t>(&mesh)); !is_new) return devices;
  const std::uint32_t axes = Values::length(mesh.axis_names());
  if (axes > max_mesh_axes)
    throw Error({&path, "axis_names"}, "at most " + to_string(max_mesh_axes) + " mesh axes", to_string(axes));
  comparison_.spend(steps_for_mesh + steps_for_axis * axes, path);
  require_distinct(mesh.axis_names(), {&path, "axis_names"}, "mesh axis");
  require_count({&path, "axis_sizes"}, "sizes, one for each axis name", axes, Values::length(mesh.axis_sizes()));
  require_count({&path, "axis_types"}, "types, one for each axis name", axes, Values::length(mesh.axis_types()));
  std::uint64_t devices = 1;
  for (std::uint32_t i = 0; i < axes; ++i) {
    if (mesh.axis_sizes()->Get(i) == 0) throw Error({&path, "axis_sizes", i}, "a positive size", "0");
    devices = std::min(devices * mesh.axis_sizes()->Get(i), std::uint64_t{1} << 32);
    const Path types{&path, "axis_types", i};
    const auto type = mesh.axis_types()->Get(i);
    require_known(root_, "a type of mesh axis", type, schema::AxisType::Manual, types, "", schema::AxisType::Auto);
  }
  if (const auto* device = mesh.abstract_device()) {
    const Path inner{&path, "abstract_device"};
    required(device->device_kind(), inner, "device_kind");
  }
  return meshes_.insert(reinterpret_cast<std::uintptr_t>(&mesh)).first = devices;
}

void ShardingCheck::named_sharding(const schema::NamedSharding& sharding, const schema::Exported& e, const Path& path) {
  if (!named_shardings_.insert(sharding)) return;
  if (const auto* spec = sharding.spec())  // a reader goes through it for each sharding that has it
    comparison_.spend(steps_for_sharding + Values::length(spec->partitions()), path);
  const std::uint32_t meshes = Values::length(e.unique_abstract_meshes());
  if (meshes > 0) require_index(sharding.abstract_mesh_idx(), meshes, {&path, "abstract_mesh_idx"});
  const Path mesh_path{&path, "mesh"};
  const schema::AbstractMesh& mesh = meshes > 0 ? *e.unique_abstract_meshes()->Get(sharding.abstract_mesh_idx())
                                                : required(sharding.mesh(), path, "mesh");
  const std::uint64_t devices = this->mesh(mesh, mesh_path);
  if (const auto* copy = sharding.mesh(); copy && copy != &mesh) {
    this->mesh(*copy, mesh_path);
    if (!comparison_.same_mesh(*copy, mesh, mesh_path)) refuse_copy(mesh_path, "the mesh that its index stands for");
  }
  if (devices != 1 && devices != device_count(e))
    throw Error(mesh_path, "a mesh of " + to_string(device_count(e)) + " devices, the artifact's number",
                devices >> 32 ? "a larger one" : "one of " + to_string(devices));
  spec(required(sharding.spec(), path, "spec"), mesh, {&path, "spec"});
}

void ShardingCheck::spec(const schema::PartitionSpec& spec, const schema::AbstractMesh& mesh, const Path& path) {
  if (!specs_of_meshes_.insert(spec, mesh)) return;
  const std::uint32_t axes = Values::length(mesh.axis_names());
  std::vector<bool> used(axes);
  const auto use = [&](const auto* names, const Path& p) {
    for (std::uint32_t i = 0; i < Values::length(names); ++i) {
      const std::string_view name = names->Get(i)->string_view();
      const Path here{p.parent, p.name, p.index >= 0 ? p.index : i};
      std::uint32_t axis = 0;
      while (axis < axes && !comparison_.same_string(mesh.axis_names()->Get(axis), names->Get(i), here)) ++axis;
      if (axis == axes) throw Error(here, "an axis of the mesh", quoted(name));
      if (mesh.axis_types()->Get(axis) == schema::AxisType::Manual)
        throw Error(here, "an axis that is not Manual", quoted(name));
      if (used[axis]) throw Error(here, "each axis once", quoted(name) + " again");
      used[axis] = true;
    }
  };
  each(spec.partitions(), path, "partitions", [&](const auto& one, const Path& p) { use(one.axes(), p); });
  use(spec.reduced(), {&path, "reduced"});
  use(spec.unreduced(), {&path, "unreduced"});
}

void ShardingCheck::sharding(const schema::Sharding& sharding, const schema::Exported& e, const Path& path) {
  if (!shardings_.insert(sharding)) return;
  require_known(root_, "a kind of sharding", sharding.kind(), schema::ShardingKind::named_sharding, path, "kind");
  if (sharding.named_sharding())
    named_sharding(*sharding.named_sharding(), e, {&path, "named_sharding"});
  else if (sharding.kind() == schema::ShardingKind::named_sharding)
    required(sharding.named_sharding(), path, "named_sharding");
  else if (sharding.kind() == schema::ShardingKind::hlo_sharding)
    required(sharding.hlo_sharding_proto(), path, "hlo_sharding_proto");
  if (const auto* proto = sharding.hlo_sharding_proto(); proto && !sharding.named_sharding()) {
    const Path inner{&path, "hlo_sharding_proto"};
    comparison_.spend(proto->size(), inner);
    read_op_sharding({reinterpret_cast<const std::uint8_t*>(proto->data()), proto->size()}, device_count(e), inner);
  }
}

}  // namespace jaxexp::wire

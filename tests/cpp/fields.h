// Every field of every table, through the accessors that flatc generates: for passes that leave nothing out.
#pragma once

#include <cstddef>

#include "exported_generated.h"

namespace jaxexp::tests {

namespace schema = wire::schema;

template <class F>
void each_field(const schema::PyTreeDef& t, F&& f) {
  f(t.kind()), f(t.children()), f(t.children_names()), f(t.custom_name()), f(t.custom_auxdata());
}

template <class F>
void each_field(const schema::AbstractDevice& t, F&& f) {
  f(t.device_kind()), f(t.num_cores()), f(t.platform());
}

template <class F>
void each_field(const schema::AbstractMesh& t, F&& f) {
  f(t.axis_sizes()), f(t.axis_names()), f(t.axis_types()), f(t.abstract_device());
}

template <class F>
void each_field(const schema::PartitionSpecOneAxis& t, F&& f) {
  f(t.axes());
}

template <class F>
void each_field(const schema::PartitionSpec& t, F&& f) {
  f(t.partitions()), f(t.reduced()), f(t.unreduced());
}

template <class F>
void each_field(const schema::NamedSharding& t, F&& f) {
  f(t.mesh()), f(t.spec()), f(t.memory_kind()), f(t.abstract_mesh_idx());
}

template <class F>
void each_field(const schema::AbstractValue& t, F&& f) {
  f(t.kind()), f(t.shape()), f(t.dtype()), f(t.memory_space());
}

template <class F>
void each_field(const schema::Sharding& t, F&& f) {
  f(t.kind()), f(t.hlo_sharding_proto()), f(t.named_sharding());
}

template <class F>
void each_field(const schema::Effect& t, F&& f) {
  f(t.type_name());
}

template <class F>
void each_field(const schema::DisabledSafetyCheck& t, F&& f) {
  f(t.kind()), f(t.custom_call_target());
}

template <class F>
void each_field(const schema::Exported& t, F&& f) {
  f(t.serialization_version()), f(t.function_name()), f(t.in_tree()), f(t.in_avals()), f(t.out_tree()),
      f(t.out_avals());
  f(t.nr_devices_short()), f(t.in_shardings()), f(t.out_shardings()), f(t.platforms()), f(t.ordered_effects());
  f(t.unordered_effects()), f(t.disabled_checks()), f(t.mlir_module_serialized()), f(t.calling_convention_version());
  f(t.module_kept_var_idx()), f(t.uses_global_constants()), f(t.vjp()), f(t.nr_devices()), f(t.unique_avals());
  f(t.unique_abstract_meshes()), f(t.unique_named_shardings()), f(t.in_avals_idxs()), f(t.out_avals_idxs());
  f(t.in_shardings_idxs()), f(t.out_shardings_idxs()), f(t.jax_version());
}

/// How many fields the schema gives a table: a test compares it with what `each_field` visits.
template <class T>
std::size_t field_count() {
  return T::MiniReflectTypeTable()->num_elems;
}

}  // namespace jaxexp::tests

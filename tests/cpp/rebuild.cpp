// Copies an artifact table by table. Parts that are shared in the source are copied once.
#include "rebuild.h"

#include <algorithm>
#include <optional>

#include "wire/artifact/writer.h"
#include "wire/base/flat_map.h"

namespace jaxexp::tests {
namespace {

namespace schema = wire::schema;

class Rebuild {
 public:
  explicit Rebuild(std::size_t longest_module) : longest_module_(longest_module), writer_(1024) {}

  std::vector<std::uint8_t> operator()(const schema::Exported& root, const wire::Notes* notes) {
    const wire::Layout layout = writer_.finish(exported(root), notes != nullptr);
    std::optional<wire::TrailerWriter> trailer;
    if (notes) {
      trailer.emplace(*notes, layout.modules);
      writer_.set_end(layout.size + trailer->size());
      for (std::size_t i = 0; i < layout.modules.size(); ++i)
        trailer->set_module_digest(i, wire::digest(layout.modules[i]));
    }
    std::vector<std::uint8_t> bytes(layout.metadata.begin(), layout.metadata.end());
    for (const auto module : layout.modules) {
      std::uint8_t length[4];
      flatbuffers::WriteScalar(length, static_cast<flatbuffers::uoffset_t>(module.size()));
      bytes.insert(bytes.end(), length, length + sizeof length);
      bytes.insert(bytes.end(), module.begin(), module.end());
      bytes.resize(bytes.size() + wire::padding(module.size()));
    }
    if (trailer) {
      bytes.resize(layout.size + trailer->size());
      trailer->finish(layout.metadata, bytes.data() + layout.size);
    }
    return bytes;
  }

 private:
  template <class T>
  using Offset = wire::Offset<T>;
  template <class T>
  using Vector = wire::Vector<T>;

  Offset<wire::String> string(const wire::String* s) { return s ? writer_.string(s->string_view()) : 0; }

  template <class Number>
  Offset<Vector<Number>> numbers(const Vector<Number>* vector) {
    if (!vector) return 0;
    std::vector<Number> copy;
    for (std::uint32_t i = 0; i < vector->size(); ++i) copy.push_back(static_cast<Number>(vector->Get(i)));
    return writer_.scalars<Number>(copy);
  }

  Offset<Vector<Offset<wire::String>>> strings(const Vector<Offset<wire::String>>* vector) {
    if (!vector) return 0;
    std::vector<Offset<wire::String>> copies;
    for (const auto* s : *vector) copies.push_back(string(s));
    return writer_.offsets<wire::String>(copies);
  }

  template <class T>
  Offset<Vector<Offset<T>>> tables(const Vector<Offset<T>>* vector) {
    if (!vector) return 0;
    std::vector<Offset<T>> copies;
    for (const T* table : *vector) copies.push_back(copy(table));
    return writer_.offsets<T>(copies);
  }

  /// What `make` writes for a table, once for each place in the source: it may be referred to over and over.
  template <class T, class Make>
  Offset<T> once(const T* table, const Make& make) {
    if (!table) return 0;
    const std::uint64_t key = reinterpret_cast<std::uintptr_t>(table);
    for (const auto& [type, offset] : copies_.insert(key).first)
      if (type == T::MiniReflectTypeTable()) return offset;
    const Offset<T> offset = make();
    copies_.insert(key).first.push_back({T::MiniReflectTypeTable(), offset.o});
    return offset;
  }

  Offset<schema::PyTreeDef> copy(const schema::PyTreeDef* t) {
    return once(t, [&] {
      const auto children = tables(t->children());
      const auto names = strings(t->children_names());
      const auto name = string(t->custom_name());
      const auto auxdata = numbers(t->custom_auxdata());
      return writer_.table<schema::PyTreeDef>(
          wire::Table::tree, {static_cast<std::uint32_t>(t->kind()), children.o, names.o, name.o, auxdata.o},
          [&] { return schema::CreatePyTreeDef(writer_.fbb(), t->kind(), children, names, name, auxdata); });
    });
  }

  Offset<schema::AbstractDevice> copy(const schema::AbstractDevice* t) {
    return once(t, [&] {
      const auto kind = string(t->device_kind());
      const auto platform = string(t->platform());
      return schema::CreateAbstractDevice(writer_.fbb(), kind, t->num_cores(), platform);
    });
  }

  Offset<schema::AbstractMesh> copy(const schema::AbstractMesh* t) {
    return once(t, [&] {
      const auto sizes = numbers(t->axis_sizes());
      const auto names = strings(t->axis_names());
      const auto types = numbers(t->axis_types());
      const auto device = copy(t->abstract_device());
      return writer_.table<schema::AbstractMesh>(wire::Table::mesh, {sizes.o, names.o, types.o, device.o}, [&] {
        return schema::CreateAbstractMesh(writer_.fbb(), sizes, names, types, device);
      });
    });
  }

  Offset<schema::PartitionSpecOneAxis> copy(const schema::PartitionSpecOneAxis* t) {
    return once(t, [&] {
      const auto axes = strings(t->axes());
      return writer_.table<schema::PartitionSpecOneAxis>(
          wire::Table::axis, {axes.o}, [&] { return schema::CreatePartitionSpecOneAxis(writer_.fbb(), axes); });
    });
  }

  Offset<schema::PartitionSpec> copy(const schema::PartitionSpec* t) {
    return once(t, [&] {
      const auto partitions = tables(t->partitions());
      const auto reduced = strings(t->reduced());
      const auto unreduced = strings(t->unreduced());
      return writer_.table<schema::PartitionSpec>(wire::Table::spec, {partitions.o, reduced.o, unreduced.o}, [&] {
        return schema::CreatePartitionSpec(writer_.fbb(), partitions, reduced, unreduced);
      });
    });
  }

  Offset<schema::NamedSharding> copy(const schema::NamedSharding* t) {
    return once(t, [&] {
      const auto mesh = copy(t->mesh());
      const auto spec = copy(t->spec());
      const auto memory_kind = string(t->memory_kind());
      return writer_.table<schema::NamedSharding>(
          wire::Table::named_sharding, {mesh.o, spec.o, memory_kind.o, t->abstract_mesh_idx()},
          [&] { return schema::CreateNamedSharding(writer_.fbb(), mesh, spec, memory_kind, t->abstract_mesh_idx()); });
    });
  }

  Offset<schema::AbstractValue> copy(const schema::AbstractValue* t) {
    return once(t, [&] {
      const auto shape = strings(t->shape());
      return writer_.table<schema::AbstractValue>(
          wire::Table::aval,
          {static_cast<std::uint32_t>(t->kind()), shape.o, static_cast<std::uint32_t>(t->dtype()),
           static_cast<std::uint32_t>(t->memory_space())},
          [&] { return schema::CreateAbstractValue(writer_.fbb(), t->kind(), shape, t->dtype(), t->memory_space()); });
    });
  }

  Offset<schema::Sharding> copy(const schema::Sharding* t) {
    return once(t, [&] {
      const auto proto = numbers(t->hlo_sharding_proto());
      const auto named = copy(t->named_sharding());
      return writer_.table<schema::Sharding>(
          wire::Table::sharding, {static_cast<std::uint32_t>(t->kind()), proto.o, named.o},
          [&] { return schema::CreateSharding(writer_.fbb(), t->kind(), proto, named); });
    });
  }

  Offset<schema::Effect> copy(const schema::Effect* t) {
    return once(t, [&] {
      const auto name = string(t->type_name());
      return schema::CreateEffect(writer_.fbb(), name);
    });
  }

  Offset<schema::DisabledSafetyCheck> copy(const schema::DisabledSafetyCheck* t) {
    return once(t, [&] {
      const auto target = string(t->custom_call_target());
      return schema::CreateDisabledSafetyCheck(writer_.fbb(), t->kind(), target);
    });
  }

  Offset<schema::Exported> exported(const schema::Exported& e) {
    Offset<schema::Exported> vjp;
    if (e.vjp()) vjp = exported(*e.vjp());
    const auto name = string(e.function_name());
    const auto in_tree = copy(e.in_tree());
    const auto in_avals = tables(e.in_avals());
    const auto out_tree = copy(e.out_tree());
    const auto out_avals = tables(e.out_avals());
    const auto in_shardings = tables(e.in_shardings());
    const auto out_shardings = tables(e.out_shardings());
    const auto platforms = strings(e.platforms());
    const auto ordered = tables(e.ordered_effects());
    const auto unordered = tables(e.unordered_effects());
    const auto checks = tables(e.disabled_checks());
    const auto kept = numbers(e.module_kept_var_idx());
    const auto avals = tables(e.unique_avals());
    const auto meshes = tables(e.unique_abstract_meshes());
    const auto shardings = tables(e.unique_named_shardings());
    const auto in_avals_idxs = numbers(e.in_avals_idxs());
    const auto out_avals_idxs = numbers(e.out_avals_idxs());
    const auto in_shardings_idxs = numbers(e.in_shardings_idxs());
    const auto out_shardings_idxs = numbers(e.out_shardings_idxs());
    const auto version = string(e.jax_version());

    schema::ExportedBuilder table(writer_.fbb());
    table.add_serialization_version(e.serialization_version());
    table.add_function_name(name);
    table.add_in_tree(in_tree);
    table.add_in_avals(in_avals);
    table.add_out_tree(out_tree);
    table.add_out_avals(out_avals);
    table.add_nr_devices_short(e.nr_devices_short());
    table.add_in_shardings(in_shardings);
    table.add_out_shardings(out_shardings);
    table.add_platforms(platforms);
    table.add_ordered_effects(ordered);
    table.add_unordered_effects(unordered);
    table.add_disabled_checks(checks);
    writer_.fbb().AddElement(schema::Exported::VT_MLIR_MODULE_SERIALIZED, wire::Writer::module_placeholder);
    table.add_calling_convention_version(e.calling_convention_version());
    table.add_module_kept_var_idx(kept);
    table.add_uses_global_constants(e.uses_global_constants());
    if (!vjp.IsNull()) table.add_vjp(vjp);
    table.add_nr_devices(e.nr_devices());
    table.add_unique_avals(avals);
    table.add_unique_abstract_meshes(meshes);
    table.add_unique_named_shardings(shardings);
    table.add_in_avals_idxs(in_avals_idxs);
    table.add_out_avals_idxs(out_avals_idxs);
    table.add_in_shardings_idxs(in_shardings_idxs);
    table.add_out_shardings_idxs(out_shardings_idxs);
    table.add_jax_version(version);
    const auto offset = table.Finish();
    const auto& module = *e.mlir_module_serialized();
    writer_.module(offset, {module.Data(), std::min<std::size_t>(module.size(), longest_module_)});
    return offset;
  }

  struct Copy {
    const flatbuffers::TypeTable* type;
    std::uint32_t offset;
  };

  std::size_t longest_module_;
  wire::Writer writer_;
  wire::FlatMap<std::vector<Copy>> copies_;
};

}  // namespace

std::vector<std::uint8_t> rebuild(const schema::Exported& root, std::size_t longest_module, const wire::Notes* notes) {
  return Rebuild(longest_module)(root, notes);
}

}  // namespace jaxexp::tests

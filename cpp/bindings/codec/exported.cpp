// Exported <-> its fields in Python.

#include <limits>

#include "bindings/base/objects.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

/// Everything that an Exported table refers to, or has in itself.
struct Encoder::Parts {
  Offset<wire::String> fun_name, jax_version;
  Offset<schema::PyTreeDef> in_tree, out_tree;
  OffsetVector<wire::String> platforms;
  OffsetVector<schema::Effect> ordered_effects, unordered_effects;
  OffsetVector<schema::DisabledSafetyCheck> checks;
  OffsetVector<schema::AbstractValue> in_avals, out_avals, unique_avals;
  OffsetVector<schema::Sharding> in_shardings, out_shardings;
  OffsetVector<schema::AbstractMesh> unique_meshes;
  OffsetVector<schema::NamedSharding> unique_shardings;
  Offset<wire::Vector<std::uint32_t>> in_avals_idxs, out_avals_idxs, in_shardings_idxs, out_shardings_idxs;
  Offset<wire::Vector<std::uint16_t>> kept_idxs;
  std::uint32_t devices = 0;
  std::uint16_t convention = 0;
  bool global_constants = false;
};

Offset<schema::Exported> Encoder::exported(const Attributes& fields, const Said& said, std::string_view exported_path,
                                           std::span<const std::uint8_t> module, std::string_view jax_version,
                                           Offset<schema::Exported> vjp) {
  exported_.name = exported_path;
  ++exported_number_;
  named_shardings_ = {};
  distinct_avals_ = {};
  distinct_meshes_ = {};
  distinct_shardings_ = {};
  shardings_by_number_.assign(1, sharding({}));

  const auto field = [&](const nb::object& name) { return at(nb::cast<const char*>(name)), fields[name]; };
  const auto number = [&](const nb::object& name, std::uint64_t least, std::uint64_t most) {
    const nb::object value = field(name);
    return integer(value, least, most, "the value");
  };
  Parts parts;
  parts.fun_name = string(field(names_.fun_name), "the value");
  const auto written = [&](const nb::object& name, const nb::object& as_written) {
    const nb::object own = field(name);
    return tree(as_written.is_valid() ? as_written : own);
  };
  parts.in_tree = written(names_.in_tree, said.in_tree);
  parts.out_tree = written(names_.out_tree, said.out_tree);
  Values in = values(fields[names_.in_avals], "in_avals", fields[names_._in_named_shardings], "_in_named_shardings",
                     said.weak_arguments);
  Values out = values(fields[names_.out_avals], "out_avals", fields[names_._out_named_shardings],
                      "_out_named_shardings", said.weak_results);
  if (form_.hlo_shardings) {
    const nb::object hlo = fields[names_._hlo_shardings];
    add_hlo_shardings(in, nb::object(hlo[0]), "in_shardings_hlo");
    add_hlo_shardings(out, nb::object(hlo[1]), "out_shardings_hlo");
  }
  parts.devices = static_cast<std::uint32_t>(number(names_.nr_devices, 1, std::numeric_limits<std::uint32_t>::max()));
  if (form_.short_device_count && parts.devices > std::numeric_limits<std::int16_t>::max())
    refuse("readers before JAX 0.8.2 count at most 32767 devices, found " + std::to_string(parts.devices));
  parts.platforms = each<wire::String>(fields[names_.platforms], "platforms",
                                       [&](nb::handle platform) { return string(platform, "the value"); });
  const auto write_effect = [&](nb::handle effect) { return this->effect(effect); };
  parts.ordered_effects = each<schema::Effect>(fields[names_.ordered_effects], "ordered_effects", write_effect);
  parts.unordered_effects = each<schema::Effect>(fields[names_.unordered_effects], "unordered_effects", write_effect);
  parts.checks = each<schema::DisabledSafetyCheck>(fields[names_.disabled_safety_checks], "disabled_safety_checks",
                                                   [&](nb::handle check) { return safety_check(check); });
  constexpr std::uint64_t largest_short = std::numeric_limits<std::uint16_t>::max();
  parts.convention = static_cast<std::uint16_t>(number(names_.calling_convention_version, 0, largest_short));
  std::vector<std::uint16_t> kept;
  for (nb::handle index : tuple_of(field(names_.module_kept_var_idx))) {
    const std::uint64_t kept_index =
        integer(index, 0, std::numeric_limits<std::int64_t>::max(), "the index of an argument that is used");
    if (kept_index > largest_short)
      refuse(
          "the format can say that a function uses arrays among the first 65,536 that it takes, and this one uses "
          "the one with index " +
          std::to_string(kept_index) + ": let it take fewer arrays, such as stacks of those of one shape");
    kept.push_back(static_cast<std::uint16_t>(kept_index));
  }
  const int global_constants = PyObject_IsTrue(field(names_.uses_global_constants).ptr());
  if (global_constants < 0) throw nb::python_error();
  parts.global_constants = global_constants != 0;

  write_lists(parts, in, out);
  parts.kept_idxs = writer_.scalars<std::uint16_t>(kept);
  parts.jax_version = writer_.string(jax_version);
  const auto offset = write_table(parts, vjp);
  writer_.module(offset, module);
  if (notes_) notes_->functions.insert(notes_->functions.begin(), {std::move(in.weak), std::move(out.weak)});
  return offset;
}

/// The order of what is written is the order of the bytes.
void Encoder::write_lists(Parts& parts, const Values& in, const Values& out) {
  parts.in_avals = writer_.offsets<schema::AbstractValue>(in.avals);
  parts.out_avals = writer_.offsets<schema::AbstractValue>(out.avals);
  parts.in_shardings = writer_.offsets<schema::Sharding>(in.shardings);
  parts.out_shardings = writer_.offsets<schema::Sharding>(out.shardings);
  parts.unique_avals = writer_.offsets<schema::AbstractValue>(distinct_avals_.tables);
  parts.unique_meshes = writer_.offsets<schema::AbstractMesh>(distinct_meshes_.tables);
  parts.unique_shardings = writer_.offsets<schema::NamedSharding>(distinct_shardings_.tables);
  parts.in_avals_idxs = writer_.scalars<std::uint32_t>(in.aval_indices);
  parts.out_avals_idxs = writer_.scalars<std::uint32_t>(out.aval_indices);
  parts.in_shardings_idxs = writer_.scalars<std::uint32_t>(in.sharding_indices);
  parts.out_shardings_idxs = writer_.scalars<std::uint32_t>(out.sharding_indices);
}

Offset<schema::Exported> Encoder::write_table(const Parts& parts, Offset<schema::Exported> vjp) {
  schema::ExportedBuilder table(writer_.fbb());
  table.add_function_name(parts.fun_name);
  table.add_in_tree(parts.in_tree);
  table.add_in_avals(parts.in_avals);
  table.add_out_tree(parts.out_tree);
  table.add_out_avals(parts.out_avals);
  table.add_in_shardings(parts.in_shardings);
  table.add_out_shardings(parts.out_shardings);
  table.add_platforms(parts.platforms);
  table.add_ordered_effects(parts.ordered_effects);
  table.add_unordered_effects(parts.unordered_effects);
  table.add_disabled_checks(parts.checks);
  writer_.fbb().AddElement(schema::Exported::VT_MLIR_MODULE_SERIALIZED, wire::Writer::module_placeholder);
  table.add_module_kept_var_idx(parts.kept_idxs);
  if (!vjp.IsNull()) table.add_vjp(vjp);
  table.add_nr_devices(parts.devices);
  table.add_unique_avals(parts.unique_avals);
  table.add_unique_abstract_meshes(parts.unique_meshes);
  table.add_unique_named_shardings(parts.unique_shardings);
  table.add_in_avals_idxs(parts.in_avals_idxs);
  table.add_out_avals_idxs(parts.out_avals_idxs);
  table.add_in_shardings_idxs(parts.in_shardings_idxs);
  table.add_out_shardings_idxs(parts.out_shardings_idxs);
  table.add_jax_version(parts.jax_version);
  table.add_serialization_version(form_.serialization_version);
  table.add_calling_convention_version(parts.convention);
  table.add_uses_global_constants(parts.global_constants);
  if (form_.short_device_count) table.add_nr_devices_short(static_cast<std::int16_t>(parts.devices));
  return table.Finish();
}

Encoder::Values Encoder::values(nb::handle avals, const char* avals_field, nb::handle shardings,
                                const char* shardings_field, const nb::object& weak) {
  Values values;
  const nb::tuple all_avals = tuple_of(avals), all_shardings = tuple_of(shardings);
  values.reserve(all_avals.size());
  const bool asks_avals = notes_ && !weak.is_valid();
  for_each(all_avals, avals_field, [&](nb::handle one) {
    const Aval aval = this->aval(one);
    if (asks_avals && aval.is_weak) values.weak.push_back(static_cast<std::uint32_t>(values.avals.size()));
    values.avals.push_back(aval.table);
    values.aval_indices.push_back(aval.number - 1);
  });
  if (notes_ && weak.is_valid())
    for (nb::handle index : weak) values.weak.push_back(nb::cast<std::uint32_t>(index));
  for_each(all_shardings, shardings_field, [&](nb::handle sharding) {
    std::uint32_t number = 0;
    if (!sharding.is_none()) number = distinct_shardings_.number(named_sharding(sharding));
    if (number == shardings_by_number_.size())
      shardings_by_number_.push_back(this->sharding(distinct_shardings_.tables.back()));
    values.sharding_indices.push_back(number);
    values.shardings.push_back(shardings_by_number_[number]);
  });
  at(shardings_field);
  if (values.shardings.size() != values.avals.size())
    refuse("there have to be as many shardings as avals, found " + std::to_string(values.shardings.size()) + " for " +
           std::to_string(values.avals.size()));
  return values;
}

void Encoder::add_hlo_shardings(Values& values, nb::handle hlo_shardings, const char* field) {
  std::size_t i = 0;
  for_each(tuple_of(hlo_shardings), field, [&](nb::handle hlo_sharding) {
    if (i < values.shardings.size() && values.sharding_indices[i] != 0)
      values.shardings[i] = sharding(distinct_shardings_.tables[values.sharding_indices[i] - 1], hlo_sharding);
    ++i;
  });
}

JaxRefs::NamedValues Decoder::exported() {
  const schema::Exported& e = exported_;
  const auto [in_avals, in_shardings] = values(wire::Values::arguments(e), "in_avals", "in_shardings");
  const auto [out_avals, out_shardings] = values(wire::Values::results(e), "out_avals", "out_shardings");
  const auto effects = [&](const auto* effects, std::string_view field) {
    return tuple_of(effects, [&](const schema::Effect& effect, std::uint32_t i) {
      return this->effect(effect, {&path_, field, i});
    });
  };

  JaxRefs::NamedValues fields;
  fields.reserve(20);  // enough for all
  const auto add = [&](nb::handle name, nb::object value) { fields.emplace_back(name, std::move(value)); };
  add(names_.fun_name, string(*e.function_name()));
  add(names_.in_tree, tree(*e.in_tree(), in_avals, {&path_, "in_tree"}));
  said_.in_tree = described_;
  add(names_.in_avals, in_avals);
  add(names_.out_tree, tree(*e.out_tree(), out_avals, {&path_, "out_tree"}));
  said_.out_tree = described_;
  add(names_.out_avals, out_avals);
  add(names_._in_named_shardings, in_shardings);
  add(names_._out_named_shardings, out_shardings);
  add(names_.nr_devices, owned(PyLong_FromUnsignedLong(wire::device_count(e))));
  add(names_.platforms, strings(e.platforms()));
  add(names_.ordered_effects, effects(e.ordered_effects(), "ordered_effects"));
  add(names_.unordered_effects, effects(e.unordered_effects(), "unordered_effects"));
  add(names_.disabled_safety_checks, tuple_of(e.disabled_checks(), [&](const auto& check, std::uint32_t i) {
        return safety_check(check, {&path_, "disabled_checks", i});
      }));
  add(names_.calling_convention_version, owned(PyLong_FromLong(e.calling_convention_version())));
  add(names_.module_kept_var_idx, tuple_of(e.module_kept_var_idx(), [](std::uint16_t index, std::uint32_t) {
        return owned(PyLong_FromLong(index));
      }));
  add(names_.uses_global_constants, nb::bool_(e.uses_global_constants()));
  if (notes_) {
    // Not in the avals: a loaded function is typed as jax.export types it.
    const auto weak = [](const flatbuffers::Vector<std::uint32_t>* indices) {
      if (wire::Values::length(indices) == 0) return nb::object();
      return tuple_of(indices, [](std::uint32_t index, std::uint32_t) { return owned(PyLong_FromLong(index)); });
    };
    said_.weak_arguments = weak(notes_->weak_arguments());
    said_.weak_results = weak(notes_->weak_results());
  }
  return fields;
}

std::pair<nb::object, nb::object> Decoder::values(const wire::Values& values, std::string_view avals_field,
                                                  std::string_view shardings_field) {
  const std::uint32_t size = values.size();
  nb::object avals = owned(PyTuple_New(size)), shardings = owned(PyTuple_New(size));
  Objects sharded_avals, hlo_shardings;  // by the positions of aval and sharding, which are below 2**31
  for (std::uint32_t i = 0; i < size; ++i) {
    const schema::AbstractValue& table = values.aval(i);
    const wire::Path aval_path{&path_, avals_field, i}, sharding_path{&path_, shardings_field, i};
    nb::object aval = this->aval(table, aval_path), sharding = nb::none();
    std::uint64_t key = position(table) << 32;
    if (const auto* named = values.named_sharding(i)) {
      key |= position(*named);
      const std::uint32_t parts = wire::Values::length(named->spec()->partitions());
      if (const std::uint32_t rank = wire::Values::length(table.shape()); parts > rank)
        throw wire::Error(sharding_path,
                          "a sharding that fits the aval, which has " + std::to_string(rank) + " dimensions",
                          "one of " + std::to_string(parts));
      sharding = named_sharding(*named, sharding_path);
    } else if (const auto* proto = values.hlo_sharding(i)) {
      key |= position(*proto);
      const auto [known, is_new] = hlo_shardings.insert(key);
      if (is_new) known = hlo_sharding(*proto, aval, sharding_path);
      sharding = known;
    }
    if (!sharding.is_none()) {
      const auto [sharded, is_new] = sharded_avals.insert(key);
      if (is_new)
        sharded =
            reading(sharding_path, "a sharding that fits the aval", [&] { return jax_.with_sharding(aval, sharding); });
      aval = sharded;
    }
    PyTuple_SET_ITEM(avals.ptr(), i, aval.release().ptr());
    PyTuple_SET_ITEM(shardings.ptr(), i, sharding.release().ptr());
  }
  return {avals, shardings};
}

// Effect <-> a JAX effect, which Python names and finds by name.

Offset<schema::Effect> Encoder::effect(nb::handle effect) {
  return schema::CreateEffect(writer_.fbb(), string(jax_.effect_name(effect), "the name of an effect"));
}

nb::object Decoder::effect(const schema::Effect& effect, const wire::Path& where) {
  shareable_ = false;
  return placing(where, [&] { return jax_.effect_of_name(string(*effect.type_name())); });
}

// DisabledSafetyCheck <-> the Python class of that name.

Offset<schema::DisabledSafetyCheck> Encoder::safety_check(nb::handle check) {
  using Kind = schema::DisabledSafetyCheckKind;
  const nb::object target = jax_.safety_check_target(check);
  if (target.is_none()) return schema::CreateDisabledSafetyCheck(writer_.fbb(), Kind::platform);
  const auto name = string(target, "the target of a custom call");
  return schema::CreateDisabledSafetyCheck(writer_.fbb(), Kind::custom_call, name);
}

nb::object Decoder::safety_check(const schema::DisabledSafetyCheck& check, const wire::Path& where) {
  const nb::object target = check.custom_call_target() ? string(*check.custom_call_target()) : nb::none();
  return reading(where, "a safety check", [&] { return jax_.safety_check(static_cast<int>(check.kind()), target); });
}

}  // namespace jaxexp::bindings

// The semantic pass over an artifact, its VJPs included.
#include "wire/exported/check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/dimension.h"
#include "wire/exported/generation.h"
#include "wire/exported/limits.h"
#include "wire/exported/op_sharding.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

using std::to_string;

struct Tree {
  std::uint64_t leaves = 0;
  std::uint64_t nodes = 0;
  std::uint64_t depth = 0;
  std::uint64_t key_bytes = 0;  // what comparing its dicts' keys reads
};

class Check {
 public:
  Check(const schema::Exported& root, std::size_t buffer_size)
      : root_(root),
        max_nodes_(max_tree_nodes(buffer_size)),
        max_key_bytes_(max_tree_key_bytes(buffer_size)),
        max_comparisons_(max_comparisons(buffer_size)) {}

  void exported(const schema::Exported& e, const Path& path) {
    // A sharding that a VJP shares with its primal has to make sense among the VJP's own meshes as well.
    named_shardings_ = {};
    shardings_ = {};
    required(e.function_name(), path, "function_name");
    required(e.mlir_module_serialized(), path, "mlir_module_serialized");
    if (e.serialization_version() == 0) throw Error({&path, "serialization_version"}, "a version from 1", "0");
    if (const std::uint32_t version = e.calling_convention_version();
        version < oldest_calling_convention || version > newest_calling_convention)
      throw Error(
          {&path, "calling_convention_version"},
          "a version from " + to_string(oldest_calling_convention) + " to " + to_string(newest_calling_convention),
          to_string(version));
    distinct_names(e.platforms(), {&path, "platforms"}, "platform");
    if (Values::length(e.platforms()) == 0) throw Error({&path, "platforms"}, "at least one platform", "none");
    device_counts(e, path);

    const Values arguments = Values::arguments(e), results = Values::results(e);
    each(e.unique_avals(), path, "unique_avals", [&](const auto& aval, const Path& p) { this->aval(aval, p); });
    each(e.unique_abstract_meshes(), path, "unique_abstract_meshes",
         [&](const auto& mesh, const Path& p) { this->mesh(mesh, p); });
    each(e.unique_named_shardings(), path, "unique_named_shardings",
         [&](const auto& sharding, const Path& p) { named_sharding(sharding, e, p); });
    values(arguments, e, path, {"in_avals", "in_avals_idxs", "in_shardings", "in_shardings_idxs"});
    values(results, e, path, {"out_avals", "out_avals_idxs", "out_shardings", "out_shardings_idxs"});
    whole_tree(e.in_tree(), arguments.size(), {&path, "in_tree"});
    call_tree(*e.in_tree(), {&path, "in_tree"});
    whole_tree(e.out_tree(), results.size(), {&path, "out_tree"});

    effects(e.ordered_effects(), {&path, "ordered_effects"});
    effects(e.unordered_effects(), {&path, "unordered_effects"});
    each(e.disabled_checks(), path, "disabled_checks", [&](const auto& disabled, const Path& p) {
      known("a kind of safety check", disabled.kind(), schema::DisabledSafetyCheckKind::shape_assertions, p, "kind");
      if (disabled.kind() == schema::DisabledSafetyCheckKind::custom_call &&
          required(disabled.custom_call_target(), p, "custom_call_target").size() == 0)
        throw Error({&p, "custom_call_target"}, "the name of a custom call's target", "an empty string");
    });
    kept_arguments(e, arguments.size(), path);
    // What such a module does follows from constants that its caller defines.
    if (const bool many = Values::length(e.platforms()) > 1;
        !e.uses_global_constants() && (many || is_symbolic(arguments) || is_symbolic(results)))
      throw Error({&path, "uses_global_constants"},
                  many ? "true, as there are several platforms" : "true, as there are symbolic dimensions", "false");
    if (const auto* vjp = e.vjp()) {
      const Path inner{&path, "vjp"};
      if (++order_ > max_vjp_order) throw Error(inner, "at most " + to_string(max_vjp_order) + " VJPs", "more");
      exported(*vjp, inner);
      vjp_signature(e, *vjp, inner);
    }
  }

 private:
  struct Names {
    std::string_view avals, aval_indices, shardings, sharding_indices;
  };

  template <class T>
  static const T& required(const T* field, const Path& parent, std::string_view name) {
    if (!field) throw Error({&parent, name}, "a value", "none");
    return *field;
  }

  template <class Enum>
  void known(const char* what, Enum value, Enum last, const Path& parent, std::string_view name,
             Enum first = Enum{}) const {
    if (value < first || value > last)
      throw Error({&parent, name}, what + (" (" + to_string(int(first))) + " to " + to_string(int(last)) + ")",
                  unknown(int(value), root_));
  }

  static void same_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found) {
    if (expected != found) throw Error(path, to_string(expected) + " " + what, to_string(found));
  }

  template <class Vector, class Function>
  static void each(const Vector* vector, const Path& parent, std::string_view name, const Function& function) {
    for (std::uint32_t i = 0; i < Values::length(vector); ++i) function(*vector->Get(i), Path{&parent, name, i});
  }

  struct Nothing {};
  using Seen = FlatMap<Nothing>;

  template <class T>
  static bool first_visit(Seen& seen, const T& table) {
    return seen.insert(reinterpret_cast<std::uintptr_t>(&table)).second;
  }

  void values(const Values& v, const schema::Exported& e, const Path& path, const Names& names) {
    if (v.avals_by_index()) {
      for (std::uint32_t i = 0; i < v.size(); ++i)
        index(v.aval_indices->Get(i), Values::length(v.unique_avals), {&path, names.aval_indices, i});
    } else {
      each(v.avals, path, names.avals, [&](const auto& aval, const Path& p) { this->aval(aval, p); });
    }
    if (v.avals_by_index()) listed_avals(v, {&path, names.avals});
    const Path shardings{&path, v.shardings_by_index() ? names.sharding_indices : names.shardings};
    same_count(shardings, "shardings, one for each aval", v.size(), v.sharding_count());
    if (v.shardings_by_index()) {
      for (std::uint32_t i = 0; i < v.size(); ++i)
        index(v.sharding_indices->Get(i), Values::length(v.unique_named_shardings) + std::uint64_t{1},
              {&path, names.sharding_indices, i});
    }
    if (v.shardings_by_index())
      listed_shardings(v, e, {&path, names.shardings});
    else
      each(v.shardings, path, names.shardings, [&](const auto& s, const Path& p) { sharding(s, e, p); });
    if (v.shardings_by_index() && Values::length(v.unique_named_shardings) == 0) return;
    for (std::uint32_t i = 0; i < v.size(); ++i) {
      const auto* named = v.named_sharding(i);
      // Each argument may have a sharding of its own made of it.
      if (const auto* proto = v.hlo_sharding(i)) spend(proto->size() / 8, {&path, names.shardings, i});
      if (!named) continue;
      const std::uint32_t partitions = Values::length(named->spec()->partitions()),
                          rank = Values::length(v.aval(i).shape());
      if (partitions > rank)
        throw Error({&path, v.shardings_by_index() ? names.sharding_indices : names.shardings, i},
                    "a sharding for the " + to_string(rank) + " dimensions of its aval",
                    "one with " + to_string(partitions) + " partitions");
    }
  }

  /// Writers since JAX 0.10.0 list all avals beside the distinct ones. Readers go by the indices, or by the list.
  void listed_avals(const Values& v, const Path& path) {
    const std::uint32_t listed = Values::length(v.avals);
    if (listed == 0) return;
    same_count(path, "avals, one for each index", v.size(), listed);
    for (std::uint32_t i = 0; i < listed; ++i) {
      const Path p{path.parent, path.name, i};
      const schema::AbstractValue &one = *v.avals->Get(i), &other = v.aval(i);
      // What says the same as an aval that was checked needs no check of its own.
      if (&one == &other || same_aval(one, other, p)) continue;
      aval(one, p);
      refuse_copy(p, "the aval that its index stands for");
    }
  }

  void listed_shardings(const Values& v, const schema::Exported& e, const Path& path) {
    const std::uint32_t listed = Values::length(v.shardings);
    if (listed == 0) return;
    same_count(path, "shardings, one for each index", v.size(), listed);
    for (std::uint32_t i = 0; i < listed; ++i) {
      const Path p{path.parent, path.name, i};
      // An xla.OpSharding without a NamedSharding is older than the indices.
      const schema::Sharding& copy = *v.shardings->Get(i);
      const auto* one = copy.named_sharding();
      const auto* other = v.named_sharding(i);
      if (one == other) continue;
      const bool is_same = one && other && same_sharding(*one, *other, p);
      if (is_same && copy.kind() <= schema::ShardingKind::named_sharding && copy.kind() >= schema::ShardingKind{})
        continue;
      sharding(copy, e, p);
      if (!is_same) refuse_copy(p, "the sharding that its index stands for");
    }
  }

  [[noreturn]] static void refuse_copy(const Path& path, const char* expected) {
    throw Error(path, expected, "another one, so one of the two is damaged");
  }

  static void device_counts(const schema::Exported& e, const Path& path) {
    const int count = e.nr_devices_short();
    if (count < 0) throw Error({&path, "nr_devices_short"}, "a positive number of devices", to_string(count));
    if (device_count(e) == 0) throw Error({&path, "nr_devices"}, "a positive number of devices", "0");
    if (count > 0 && e.nr_devices() > 0 && e.nr_devices() != static_cast<std::uint32_t>(count))
      throw Error({&path, "nr_devices_short"}, to_string(e.nr_devices()) + ", the other number of devices",
                  to_string(count));
  }

  /// Only an effect's type is stored, so two effects of one type would be one.
  void effects(const flatbuffers::Vector<flatbuffers::Offset<schema::Effect>>* effects, const Path& path) {
    std::vector<std::string_view> names;
    each(effects, *path.parent, path.name, [&](const auto& effect, const Path& p) {
      names.push_back(required(effect.type_name(), p, "type_name").string_view());
    });
    distinct(std::move(names), path, "effect");
  }

  static void distinct_names(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* texts,
                             const Path& path, const char* what) {
    if (Values::length(texts) == 1 && texts->Get(0)->size() > 0) return;
    std::vector<std::string_view> names;
    for (std::uint32_t i = 0; i < Values::length(texts); ++i) names.push_back(texts->Get(i)->string_view());
    distinct(std::move(names), path, what);
  }

  static void distinct(std::vector<std::string_view> names, const Path& path, const char* what) {
    if (names.empty()) return;
    std::ranges::sort(names);
    if (names.front().empty()) throw Error(path, std::string("a name of each ") + what, "an empty string");
    const auto twin = std::ranges::adjacent_find(names);
    if (twin != names.end()) throw Error(path, std::string("each ") + what + " once", quoted(*twin) + " again");
  }

  static void index(std::uint64_t index, std::uint64_t size, const Path& path) {
    if (index >= size) throw Error(path, "an index below " + to_string(size), to_string(index));
  }

  void aval(const schema::AbstractValue& aval, const Path& path) {
    if (!first_visit(avals_, aval)) return;
    known("a kind of abstract value", aval.kind(), schema::AbstractValueKind::shapedArray, path, "kind");
    known("a memory space", aval.memory_space(), schema::MemorySpace::Any, path, "memory_space");
    each(aval.shape(), path, "shape", [&](const flatbuffers::String& dimension, const Path& p) {
      const std::string_view text = dimension.string_view();
      if (is_size(text)) return;
      if (first_visit(dimensions_, dimension)) parse_dimension(text, p);
      first_visit(symbolic_avals_, aval);
    });
  }

  bool is_symbolic(const Values& v) const {
    if (symbolic_avals_.empty()) return false;
    for (std::uint32_t i = 0; i < v.size(); ++i)
      if (symbolic_avals_.contains(reinterpret_cast<std::uintptr_t>(&v.aval(i)))) return true;
    return false;
  }

  /// Returns how many devices a mesh is of; that stops growing just above what a device count can be.
  std::uint64_t mesh(const schema::AbstractMesh& mesh, const Path& path) {
    if (const auto [devices, is_new] = meshes_.insert(reinterpret_cast<std::uintptr_t>(&mesh)); !is_new) return devices;
    const std::uint32_t axes = Values::length(mesh.axis_names());
    if (axes > max_mesh_axes)
      throw Error({&path, "axis_names"}, "at most " + to_string(max_mesh_axes) + " mesh axes", to_string(axes));
    distinct_names(mesh.axis_names(), {&path, "axis_names"}, "mesh axis");
    same_count({&path, "axis_sizes"}, "sizes, one for each axis name", axes, Values::length(mesh.axis_sizes()));
    same_count({&path, "axis_types"}, "types, one for each axis name", axes, Values::length(mesh.axis_types()));
    std::uint64_t devices = 1;
    for (std::uint32_t i = 0; i < axes; ++i) {
      if (mesh.axis_sizes()->Get(i) == 0) throw Error({&path, "axis_sizes", i}, "a positive size", "0");
      devices = std::min(devices * mesh.axis_sizes()->Get(i), std::uint64_t{1} << 32);
      const Path types{&path, "axis_types", i};
      const auto type = mesh.axis_types()->Get(i);
      known("a type of mesh axis", type, schema::AxisType::Manual, types, "", schema::AxisType::Auto);
    }
    if (const auto* device = mesh.abstract_device()) {
      const Path inner{&path, "abstract_device"};
      required(device->device_kind(), inner, "device_kind");
    }
    return meshes_.insert(reinterpret_cast<std::uintptr_t>(&mesh)).first = devices;
  }

  void named_sharding(const schema::NamedSharding& sharding, const schema::Exported& e, const Path& path) {
    if (!first_visit(named_shardings_, sharding)) return;
    const std::uint32_t meshes = Values::length(e.unique_abstract_meshes());
    if (meshes > 0) index(sharding.abstract_mesh_idx(), meshes, {&path, "abstract_mesh_idx"});
    const Path mesh_path{&path, "mesh"};
    const schema::AbstractMesh& mesh = meshes > 0 ? *e.unique_abstract_meshes()->Get(sharding.abstract_mesh_idx())
                                                  : required(sharding.mesh(), path, "mesh");
    const std::uint64_t devices = this->mesh(mesh, mesh_path);
    if (const auto* copy = sharding.mesh(); copy && copy != &mesh) {
      this->mesh(*copy, mesh_path);
      if (!same_mesh(*copy, mesh, mesh_path)) refuse_copy(mesh_path, "the mesh that its index stands for");
    }
    if (devices != 1 && devices != device_count(e))
      throw Error(mesh_path, "a mesh of " + to_string(device_count(e)) + " devices, the artifact's number",
                  devices >> 32 ? "a larger one" : "one of " + to_string(devices));
    spec(required(sharding.spec(), path, "spec"), mesh, {&path, "spec"});
  }

  /// Every axis has to be the mesh's, and may be used once.
  void spec(const schema::PartitionSpec& spec, const schema::AbstractMesh& mesh, const Path& path) {
    if (!first_pair(specs_of_meshes_, spec, mesh)) return;
    std::vector<std::string_view> used;
    const auto use = [&](const auto* names, const Path& p) {
      for (std::uint32_t i = 0; i < Values::length(names); ++i) {
        const std::string_view name = names->Get(i)->string_view();
        spend(1 + Values::length(mesh.axis_names()), p);
        const Path here{p.parent, p.name, p.index >= 0 ? p.index : i};
        std::uint32_t axis = 0;
        while (axis < Values::length(mesh.axis_names()) && mesh.axis_names()->Get(axis)->string_view() != name) ++axis;
        if (axis == Values::length(mesh.axis_names())) throw Error(here, "an axis of the mesh", quoted(name));
        if (mesh.axis_types()->Get(axis) == schema::AxisType::Manual)
          throw Error(here, "an axis that is not Manual", quoted(name));
        if (std::ranges::find(used, name) != used.end()) throw Error(here, "each axis once", quoted(name) + " again");
        used.push_back(name);
      }
    };
    spend(Values::length(spec.partitions()), path);
    each(spec.partitions(), path, "partitions", [&](const auto& one, const Path& p) { use(one.axes(), p); });
    use(spec.reduced(), {&path, "reduced"});
    use(spec.unreduced(), {&path, "unreduced"});
  }

  void sharding(const schema::Sharding& sharding, const schema::Exported& e, const Path& path) {
    if (!first_visit(shardings_, sharding)) return;
    known("a kind of sharding", sharding.kind(), schema::ShardingKind::named_sharding, path, "kind");
    if (sharding.named_sharding())
      named_sharding(*sharding.named_sharding(), e, {&path, "named_sharding"});
    else if (sharding.kind() == schema::ShardingKind::named_sharding)
      required(sharding.named_sharding(), path, "named_sharding");
    else if (sharding.kind() == schema::ShardingKind::hlo_sharding)
      required(sharding.hlo_sharding_proto(), path, "hlo_sharding_proto");
    if (const auto* proto = sharding.hlo_sharding_proto(); proto && !sharding.named_sharding()) {
      const Path inner{&path, "hlo_sharding_proto"};
      spend(proto->size(), inner);
      check_op_sharding({reinterpret_cast<const std::uint8_t*>(proto->data()), proto->size()}, device_count(e), inner);
    }
  }

  /// What is called with positional and keyword arguments takes a pair of a tuple and a dict.
  static void call_tree(const schema::PyTreeDef& tree, const Path& path) {
    using Kind = schema::PyTreeDefKind;
    const auto is = [&](std::uint32_t i, Kind kind) { return tree.children()->Get(i)->kind() == kind; };
    if (tree.kind() != Kind::tuple || Values::length(tree.children()) != 2 || !is(0, Kind::tuple) || !is(1, Kind::dict))
      throw Error(path, "a tuple of the tuple of arguments and the dict of keyword arguments", "another tree");
  }

  void whole_tree(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) {
    const Tree tree = this->tree(required(root, path, ""), path);
    if (tree.nodes > max_nodes_) throw Error(path, "a tree of at most " + to_string(max_nodes_) + " nodes", "more");
    if (tree.key_bytes > max_key_bytes_) refuse_keys(path);
    same_count(path, "leaves, one for each aval", avals, tree.leaves);
  }

  /// Counts in a tree; they stop growing just above their limits, so they can't overflow.
  Tree tree(const schema::PyTreeDef& node, const Path& path) {
    if (node.kind() == schema::PyTreeDefKind::leaf && !node.children()) return {1, 1, 1, 0};  // most nodes, by far
    if (const auto [known_tree, is_new] = trees_.insert(reinterpret_cast<std::uintptr_t>(&node)); !is_new)
      return known_tree;
    const std::uint32_t arity = Values::length(node.children());
    known("a kind of tree node", node.kind(), schema::PyTreeDefKind::custom, path, "kind");
    const bool is_leaf = node.kind() == schema::PyTreeDefKind::leaf;
    if (is_leaf || node.kind() == schema::PyTreeDefKind::none)
      same_count({&path, "children"}, "children of a leaf or None", 0, arity);
    if (node.kind() == schema::PyTreeDefKind::custom) required(node.custom_name(), path, "custom_name");
    Tree total{is_leaf, 1, 1, 0};
    if (node.kind() == schema::PyTreeDefKind::dict) total.key_bytes = keys(node, arity, {&path, "children_names"});
    for (std::uint32_t i = 0; i < arity; ++i) {
      const Tree child = tree(*node.children()->Get(i), {&path, "children", i});
      total.leaves = std::min(total.leaves + child.leaves, max_nodes_ + 1);
      total.nodes = std::min(total.nodes + child.nodes, max_nodes_ + 1);
      total.key_bytes = std::min(total.key_bytes + child.key_bytes, max_key_bytes_ + 1);
      total.depth = std::max(total.depth, child.depth + 1);
    }
    if (total.depth > max_tree_depth)
      throw Error(path, "a tree of at most " + to_string(max_tree_depth) + " levels", "more");
    return trees_.insert(reinterpret_cast<std::uintptr_t>(&node)).first = total;
  }

  /// Dicts may share their keys, so what comparing them takes is limited, over all dicts here and for a whole tree.
  std::uint64_t keys(const schema::PyTreeDef& dict, std::uint32_t arity, const Path& path) {
    const auto* names = dict.children_names();
    same_count(path, "keys, one for each child", arity, Values::length(names));
    const std::uint64_t compared_before = key_bytes_;
    for (std::uint32_t i = 1; i < arity; ++i) {
      const std::string_view previous = names->Get(i - 1)->string_view(), key = names->Get(i)->string_view();
      key_bytes_ += std::min(previous.size(), key.size());
      if (key_bytes_ > max_key_bytes_) refuse_keys(path);
      if (previous >= key)
        throw Error({path.parent, path.name, i}, "keys in ascending order", quoted(key) + " after " + quoted(previous));
    }
    return key_bytes_ - compared_before;
  }

  [[noreturn]] void refuse_keys(const Path& path) const {
    throw Error(path, "dicts with keys of at most " + to_string(max_key_bytes_) + " bytes in total", "more");
  }

  static std::string quoted(std::string_view key) { return "'" + shortened(key) + "'"; }

  static void kept_arguments(const schema::Exported& e, std::uint32_t arguments, const Path& path) {
    const auto* kept = e.module_kept_var_idx();
    for (std::uint32_t i = 0; i < Values::length(kept); ++i) {
      const Path where{&path, "module_kept_var_idx", i};
      index(kept->Get(i), arguments, where);
      if (i > 0 && kept->Get(i - 1) >= kept->Get(i))
        throw Error(where, "indices in ascending order",
                    to_string(kept->Get(i)) + " after " + to_string(kept->Get(i - 1)));
    }
  }

  /// A VJP takes what its primal takes, then a cotangent for each result, and returns one for each argument.
  void vjp_signature(const schema::Exported& e, const schema::Exported& vjp, const Path& path) {
    const Values primals = Values::arguments(e), results = Values::results(e);
    const Values arguments = Values::arguments(vjp), cotangents = Values::results(vjp);
    same_count({&path, "in_avals"}, "arguments (the primal's, and a cotangent for each of its results)",
               primals.size() + std::uint64_t{results.size()}, arguments.size());
    same_count({&path, "out_avals"}, "results (a cotangent for each of the primal's arguments)", primals.size(),
               cotangents.size());
    for (std::uint32_t i = 0; i < primals.size(); ++i) {
      const schema::AbstractValue &primal = primals.aval(i), &argument = arguments.aval(i);
      const Path p{&path, "in_avals", i};
      if (argument.dtype() != primal.dtype())
        throw Error({&p, "dtype"}, to_string(int(primal.dtype())) + ", the dtype of the primal's argument",
                    to_string(int(argument.dtype())));
      if (!same_shape(argument, primal, p)) throw Error({&p, "shape"}, "the shape of the primal's argument", "another");
      cotangent(cotangents.aval(i), primal, {&path, "out_avals", i});
    }
    for (std::uint32_t i = 0; i < results.size(); ++i)
      cotangent(arguments.aval(primals.size() + i), results.aval(i), {&path, "in_avals", primals.size() + i});
    if (!same_strings(vjp.platforms(), e.platforms(), {&path, "platforms"}))
      throw Error({&path, "platforms"}, "the platforms of the primal", "others");
    const std::uint32_t devices = device_count(vjp), of_primal = device_count(e);
    if (devices != of_primal && devices != 1 && of_primal != 1)
      throw Error({&path, "nr_devices"}, to_string(of_primal) + " devices, the primal's number", to_string(devices));
  }

  void cotangent(const schema::AbstractValue& cotangent, const schema::AbstractValue& primal, const Path& path) {
    using schema::DType;
    const DType of_primal = primal.dtype(), found = cotangent.dtype();
    const bool is_integer =
        (of_primal >= DType::bool_ && of_primal <= DType::ui64) || of_primal == DType::i4 || of_primal == DType::ui4;
    // Keys of random numbers, and what was registered at run time, tell nothing about their tangents.
    const bool is_any = of_primal >= DType::key_fry;
    if (const DType expected = is_integer ? DType::f0 : of_primal; !is_any && found != expected)
      throw Error({&path, "dtype"},
                  to_string(int(expected)) + ", the dtype of cotangents of dtype " + to_string(int(of_primal)),
                  to_string(int(found)));
    if (!same_shape(cotangent, primal, path)) throw Error({&path, "shape"}, "the shape of the primal value", "another");
  }

  // Whether tables that have passed the checks of their own say the same.

  bool same_aval(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path) {
    return &a == &b || (a.kind() == b.kind() && a.dtype() == b.dtype() && a.memory_space() == b.memory_space() &&
                        same_shape(a, b, path));
  }

  bool same_shape(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path) {
    return same_strings(a.shape(), b.shape(), path);
  }

  /// Whether a copy is alike in every field; both name their mesh by index, if the artifact lists its meshes.
  bool same_sharding(const schema::NamedSharding& copy, const schema::NamedSharding& checked, const Path& path) {
    const schema::AbstractMesh *one = copy.mesh(), *other = checked.mesh();
    return copy.abstract_mesh_idx() == checked.abstract_mesh_idx() && copy.spec() &&
           (one == other || (one && other && same_mesh(*one, *other, path))) &&
           same_spec(*copy.spec(), *checked.spec(), path) &&
           same_string(copy.memory_kind(), checked.memory_kind(), path);
  }

  /// Of these two, only the second need have passed the check of meshes.
  bool same_mesh(const schema::AbstractMesh& copy, const schema::AbstractMesh& checked, const Path& path) {
    if (&copy == &checked) return true;
    if (!same_numbers(copy.axis_sizes(), checked.axis_sizes(), path) ||
        !same_numbers(copy.axis_types(), checked.axis_types(), path) ||
        !same_strings(copy.axis_names(), checked.axis_names(), path))
      return false;
    const schema::AbstractDevice *one = copy.abstract_device(), *other = checked.abstract_device();
    if (one == other) return true;
    return one && other && one->num_cores() == other->num_cores() &&
           same_string(one->device_kind(), other->device_kind(), path) &&
           same_string(one->platform(), other->platform(), path);
  }

  template <class Numbers>
  bool same_numbers(const Numbers* a, const Numbers* b, const Path& path) {
    const std::uint32_t size = Values::length(a);
    if (a == b || size != Values::length(b)) return a == b;
    spend(1 + size, path);
    for (std::uint32_t i = 0; i < size; ++i)
      if (a->Get(i) != b->Get(i)) return false;
    return true;
  }

  bool same_spec(const schema::PartitionSpec& a, const schema::PartitionSpec& b, const Path& path) {
    if (&a == &b) return true;
    const std::uint32_t partitions = Values::length(a.partitions());
    if (partitions != Values::length(b.partitions())) return false;
    for (std::uint32_t i = 0; i < partitions; ++i)
      if (!same_strings(a.partitions()->Get(i)->axes(), b.partitions()->Get(i)->axes(), path)) return false;
    return same_strings(a.reduced(), b.reduced(), path) && same_strings(a.unreduced(), b.unreduced(), path);
  }

  using Strings = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

  bool same_strings(const Strings* a, const Strings* b, const Path& path) {
    spend(1, path);
    if (a == b) return true;
    if (Values::length(a) != Values::length(b)) return false;
    for (std::uint32_t i = 0; i < Values::length(a); ++i)
      if (!same_string(a->Get(i), b->Get(i), path)) return false;
    return true;
  }

  bool same_string(const flatbuffers::String* a, const flatbuffers::String* b, const Path& path) {
    spend(1, path);
    if (a == b) return true;
    if (!a || !b || a->size() != b->size()) return false;
    spend(a->size() / 8, path);
    return a->string_view() == b->string_view();
  }

  /// Tables that belong together in many places are compared once.
  bool first_pair(Seen& seen, const flatbuffers::Table& a, const flatbuffers::Table& b) {
    const auto place = [&](const flatbuffers::Table& table) {
      const auto distance = reinterpret_cast<const char*>(&table) - reinterpret_cast<const char*>(&root_);
      return static_cast<std::uint64_t>(static_cast<std::uint32_t>(distance));
    };
    return seen.insert(place(a) << 32 | place(b)).second;
  }
  template <class A, class B>
  bool first_pair(Seen& seen, const A& a, const B& b) {
    return first_pair(seen, reinterpret_cast<const flatbuffers::Table&>(a),
                      reinterpret_cast<const flatbuffers::Table&>(b));
  }

  void spend(std::uint64_t steps, const Path& path) {
    if ((comparisons_ += steps) > max_comparisons_)
      throw Error(path, "tables that can be compared in " + to_string(max_comparisons_) + " steps", "more");
  }

  const schema::Exported& root_;
  const std::uint64_t max_nodes_;
  const std::uint64_t max_key_bytes_;
  const std::uint64_t max_comparisons_;
  std::size_t order_ = 0;  // of the VJP that is being checked
  std::uint64_t key_bytes_ = 0;
  std::uint64_t comparisons_ = 0;
  FlatMap<Tree> trees_;
  FlatMap<std::uint64_t> meshes_;  // how many devices each is of
  Seen avals_, symbolic_avals_, dimensions_, named_shardings_, shardings_;
  Seen specs_of_meshes_;  // pairs
};

}  // namespace

void check(const schema::Exported& root, std::size_t buffer_size) { Check(root, buffer_size).exported(root, {}); }

}  // namespace jaxexp::wire

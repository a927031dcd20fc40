// The semantic pass over an artifact, its VJPs included.
#include "check.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "error.h"
#include "flat_map.h"
#include "generation.h"
#include "limits.h"
#include "values.h"

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
      : root_(root), max_nodes_(max_tree_nodes(buffer_size)), max_key_bytes_(max_tree_key_bytes(buffer_size)) {}

  void exported(const schema::Exported& e, const Path& path) {
    // A sharding that a VJP shares with its primal has to make sense among the VJP's own meshes as well.
    named_shardings_ = {};
    shardings_ = {};
    required(e.function_name(), path, "function_name");
    required(e.mlir_module_serialized(), path, "mlir_module_serialized");
    if (Values::length(e.platforms()) == 0) throw Error({&path, "platforms"}, "at least one platform", "none");
    if (device_count(e) == 0)
      throw Error({&path, "nr_devices"}, "a positive number of devices", to_string(e.nr_devices_short()));

    const Values arguments = Values::arguments(e), results = Values::results(e);
    each(e.unique_avals(), path, "unique_avals", [&](const auto& aval, const Path& p) { this->aval(aval, p); });
    each(e.unique_abstract_meshes(), path, "unique_abstract_meshes",
         [&](const auto& mesh, const Path& p) { this->mesh(mesh, p); });
    each(e.unique_named_shardings(), path, "unique_named_shardings",
         [&](const auto& sharding, const Path& p) { named_sharding(sharding, e, p); });
    values(arguments, e, path, {"in_avals", "in_avals_idxs", "in_shardings", "in_shardings_idxs"});
    values(results, e, path, {"out_avals", "out_avals_idxs", "out_shardings", "out_shardings_idxs"});
    whole_tree(e.in_tree(), arguments.size(), {&path, "in_tree"});
    whole_tree(e.out_tree(), results.size(), {&path, "out_tree"});

    const auto effect = [&](const auto& effect, const Path& p) { required(effect.type_name(), p, "type_name"); };
    each(e.ordered_effects(), path, "ordered_effects", effect);
    each(e.unordered_effects(), path, "unordered_effects", effect);
    each(e.disabled_checks(), path, "disabled_checks", [&](const auto& disabled, const Path& p) {
      known("a kind of safety check", disabled.kind(), schema::DisabledSafetyCheckKind::shape_assertions, p, "kind");
      if (disabled.kind() == schema::DisabledSafetyCheckKind::custom_call)
        required(disabled.custom_call_target(), p, "custom_call_target");
    });
    kept_arguments(e, arguments.size(), path);
    if (const auto* vjp = e.vjp()) {
      const Path inner{&path, "vjp"};
      same_count({&inner, "in_avals"}, "arguments (the primal's, and a cotangent for each of its results)",
                 arguments.size() + std::uint64_t{results.size()}, Values::arguments(*vjp).size());
      same_count({&inner, "out_avals"}, "results (a cotangent for each of the primal's arguments)", arguments.size(),
                 Values::results(*vjp).size());
      exported(*vjp, inner);
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
  void known(const char* what, Enum value, Enum last, const Path& parent, std::string_view name, Enum first = Enum{}) const {
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
    const Path shardings{&path, v.shardings_by_index() ? names.sharding_indices : names.shardings};
    same_count(shardings, "shardings, one for each aval", v.size(), v.sharding_count());
    if (v.shardings_by_index()) {
      for (std::uint32_t i = 0; i < v.size(); ++i)
        index(v.sharding_indices->Get(i), Values::length(v.unique_named_shardings) + std::uint64_t{1},
              {&path, names.sharding_indices, i});
    } else {
      each(v.shardings, path, names.shardings, [&](const auto& s, const Path& p) { sharding(s, e, p); });
    }
  }

  static void index(std::uint64_t index, std::uint64_t size, const Path& path) {
    if (index >= size) throw Error(path, "an index below " + to_string(size), to_string(index));
  }

  void aval(const schema::AbstractValue& aval, const Path& path) {
    if (!first_visit(avals_, aval)) return;
    known("a kind of abstract value", aval.kind(), schema::AbstractValueKind::shapedArray, path, "kind");
    known("a memory space", aval.memory_space(), schema::MemorySpace::Any, path, "memory_space");
    each(aval.shape(), path, "shape", [](const flatbuffers::String& dimension, const Path& p) {
      if (dimension.size() == 0) throw Error(p, "a dimension", "an empty string");
    });
  }

  void mesh(const schema::AbstractMesh& mesh, const Path& path) {
    if (!first_visit(meshes_, mesh)) return;
    const std::uint32_t axes = Values::length(mesh.axis_names());
    same_count({&path, "axis_sizes"}, "sizes, one for each axis name", axes, Values::length(mesh.axis_sizes()));
    same_count({&path, "axis_types"}, "types, one for each axis name", axes, Values::length(mesh.axis_types()));
    for (std::uint32_t i = 0; i < axes; ++i) {
      const Path types{&path, "axis_types", i};
      const auto type = mesh.axis_types()->Get(i);
      known("a type of mesh axis", type, schema::AxisType::Manual, types, "", schema::AxisType::Auto);
    }
    if (const auto* device = mesh.abstract_device()) {
      const Path inner{&path, "abstract_device"};
      required(device->device_kind(), inner, "device_kind");
    }
  }

  void named_sharding(const schema::NamedSharding& sharding, const schema::Exported& e, const Path& path) {
    if (!first_visit(named_shardings_, sharding)) return;
    if (const std::uint32_t meshes = Values::length(e.unique_abstract_meshes()))
      index(sharding.abstract_mesh_idx(), meshes, {&path, "abstract_mesh_idx"});
    else
      mesh(required(sharding.mesh(), path, "mesh"), {&path, "mesh"});
    required(sharding.spec(), path, "spec");
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

  const schema::Exported& root_;
  const std::uint64_t max_nodes_;
  const std::uint64_t max_key_bytes_;
  std::uint64_t key_bytes_ = 0;
  FlatMap<Tree> trees_;
  Seen avals_, meshes_, named_shardings_, shardings_;
};

}  // namespace

void check(const schema::Exported& root, std::size_t buffer_size) { Check(root, buffer_size).exported(root, {}); }

}  // namespace jaxexp::wire

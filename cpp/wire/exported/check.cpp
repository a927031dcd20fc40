// The semantic pass over an artifact, its VJPs included.
#include "wire/exported/check.h"

#include <algorithm>
#include <set>
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

// What all checks require of tables, and the errors they throw.

using Strings = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

template <class T>
const T& required(const T* field, const Path& parent, std::string_view name) {
  if (!field) throw Error({&parent, name}, "a value", "none");
  return *field;
}

/// The number of an enumerator. The error says which reader may know a number that is unknown here; `root` has what it
/// needs for that.
template <class Enum>
void require_known(const schema::Exported& root, const char* what, Enum value, Enum last, const Path& parent,
                   std::string_view name, Enum first = Enum{}) {
  const auto text = [](Enum number) { return std::to_string(static_cast<int>(number)); };
  if (value < first || value > last)
    throw Error({&parent, name}, what + (" (" + text(first)) + " to " + text(last) + ")",
                unknown(static_cast<int>(value), root));
}

[[noreturn]] void refuse_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found) {
  throw Error(path, to_string(expected) + " " + what, to_string(found));
}
void require_count(const Path& path, const char* what, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) refuse_count(path, what, expected, found);
}

[[noreturn]] void refuse_index(std::uint64_t index, std::uint64_t size, const Path& path) {
  throw Error(path, "an index below " + to_string(size), to_string(index));
}
void require_index(std::uint64_t index, std::uint64_t size, const Path& path) {
  if (index >= size) refuse_index(index, size, path);
}

/// Calls a function with each element of a vector and the element's path. The vector may be absent.
template <class Vector, class Function>
void each(const Vector* vector, const Path& parent, std::string_view name, const Function& function) {
  for (std::uint32_t i = 0; i < Values::length(vector); ++i) function(*vector->Get(i), Path{&parent, name, i});
}

std::string quoted(std::string_view text) { return "'" + shortened(text) + "'"; }

/// All names have to be different, and none may be empty.
void require_distinct(std::vector<std::string_view> names, const Path& path, const char* what) {
  if (names.empty()) return;
  // One text in many places is found by its place: sorting would compare all of it, again and again. What is left is
  // no longer than the artifact.
  const auto place = [](std::string_view name) { return reinterpret_cast<std::uintptr_t>(name.data()); };
  std::ranges::sort(names, {}, place);
  const auto same = std::ranges::adjacent_find(names, {}, place);
  if (same != names.end() && !same->empty())
    throw Error(path, std::string("each ") + what + " once", quoted(*same) + " again");
  std::ranges::sort(names);
  if (names.front().empty()) throw Error(path, std::string("a name of each ") + what, "an empty string");
  const auto twin = std::ranges::adjacent_find(names);
  if (twin != names.end()) throw Error(path, std::string("each ") + what + " once", quoted(*twin) + " again");
}

void require_distinct(const Strings* names, const Path& path, const char* what) {
  if (Values::length(names) == 1 && names->Get(0)->size() > 0) return;
  std::vector<std::string_view> texts;
  for (std::uint32_t i = 0; i < Values::length(names); ++i) texts.push_back(names->Get(i)->string_view());
  require_distinct(std::move(texts), path, what);
}

[[noreturn]] void refuse_copy(const Path& path, const char* expected) {
  throw Error(path, expected, "a different one, so one of the two is damaged");
}

// Field by field; a table is not compared with itself.

/// Comparing takes a limited number of steps over all tables of an artifact; beyond it, everything throws Error.
class Comparison {
 public:
  explicit Comparison(std::uint64_t most) : most_(most) {}

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

  bool same_spec(const schema::PartitionSpec& a, const schema::PartitionSpec& b, const Path& path) {
    if (&a == &b) return true;
    const std::uint32_t partitions = Values::length(a.partitions());
    if (partitions != Values::length(b.partitions())) return false;
    for (std::uint32_t i = 0; i < partitions; ++i)
      if (!same_strings(a.partitions()->Get(i)->axes(), b.partitions()->Get(i)->axes(), path)) return false;
    return same_strings(a.reduced(), b.reduced(), path) && same_strings(a.unreduced(), b.unreduced(), path);
  }

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

  void spend(std::uint64_t steps, const Path& path) {
    if ((spent_ += steps) > most_) refuse(path);
  }

 private:
  template <class Numbers>
  bool same_numbers(const Numbers* a, const Numbers* b, const Path& path) {
    const std::uint32_t size = Values::length(a);
    if (a == b || size != Values::length(b)) return a == b;
    spend(1 + size, path);
    for (std::uint32_t i = 0; i < size; ++i)
      if (a->Get(i) != b->Get(i)) return false;
    return true;
  }

  [[noreturn]] void refuse(const Path& path) const {
    throw Error(path, "tables that can be compared in " + std::to_string(most_) + " steps", "more");
  }

  const std::uint64_t most_;
  std::uint64_t spent_ = 0;
};

/// Tables that were visited: those that are shared are checked once.
class Seen {
 public:
  template <class T>
  bool insert(const T& table) {
    return places_.insert(place(table)).second;
  }

  template <class T>
  bool contains(const T& table) const {
    return places_.contains(place(table));
  }

  bool empty() const { return places_.empty(); }

 private:
  template <class T>
  static std::uint64_t place(const T& table) {
    return reinterpret_cast<std::uintptr_t>(&table);
  }

  FlatMap<Nothing> places_;
};

/// Pairs of tables: those that are together in many places are looked at once.
class SeenPairs {
 public:
  /// `root` is where places are counted from.
  explicit SeenPairs(const void* root) : root_(static_cast<const char*>(root)) {}

  template <class A, class B>
  bool insert(const A& a, const B& b) {
    return places_.insert(place(&a) << 32 | place(&b)).second;
  }

 private:
  /// A different one for each table: the lower half of its distance.
  std::uint64_t place(const void* table) const {
    return static_cast<std::uint32_t>(static_cast<const char*>(table) - root_);
  }

  const char* root_;
  FlatMap<Nothing> places_;
};

/// Abstract values: their kinds, and dimensions as JAX prints them.
/// Distinct avals are few, and so are distinct dimensions.
class AvalCheck {
 public:
  /// `root` is for errors.
  explicit AvalCheck(const schema::Exported& root) : root_(root) {}

  void check(const schema::AbstractValue& aval, const Path& path) {
    if (!avals_.insert(aval)) return;
    require_known(root_, "a kind of abstract value", aval.kind(), schema::AbstractValueKind::shapedArray, path, "kind");
    require_known(root_, "a memory space", aval.memory_space(), schema::MemorySpace::Any, path, "memory_space");
    each(aval.shape(), path, "shape", [&](const flatbuffers::String& dimension, const Path& p) {
      const std::string_view text = dimension.string_view();
      if (is_size(text)) return;
      if (dimensions_.insert(dimension)) parse_dimension(text, p);
      symbolic_.insert(aval);
    });
  }

  /// Whether one of the values has a symbolic dimension. They have to be checked.
  bool is_symbolic(const Values& v) const {
    if (symbolic_.empty()) return false;
    for (std::uint32_t i = 0; i < v.size(); ++i)
      if (symbolic_.contains(v.aval(i))) return true;
    return false;
  }

  /// The sizes of results follow from those of arguments: each of their variables has to be one of an argument's.
  void results_follow(const Values& arguments, const Values& results, const Path& path) const {
    if (!is_symbolic(results)) return;
    std::set<std::string_view> known;
    Seen dimensions;  // most results have those of an argument
    each_variable(arguments, {&path, "in_avals"}, dimensions,
                  [&](std::string_view name, const Path&) { known.insert(name); });
    each_variable(results, {&path, "out_avals"}, dimensions, [&](std::string_view name, const Path& p) {
      if (!known.contains(name))
        throw Error(p, "dimension variables of the arguments", "'" + shortened(name) + "', which no argument has");
    });
  }

 private:
  /// Of dimensions that were parsed, and that were not seen.
  template <class Visit>
  void each_variable(const Values& values, const Path& path, Seen& dimensions, const Visit& visit) const {
    Seen avals;
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      const schema::AbstractValue& aval = values.aval(i);
      if (!symbolic_.contains(aval) || !avals.insert(aval)) continue;
      const Path at{path.parent, path.name, i};
      each(aval.shape(), at, "shape", [&](const flatbuffers::String& dimension, const Path& p) {
        const std::string_view text = dimension.string_view();
        if (is_size(text) || !dimensions.insert(dimension)) return;
        for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
          end = begin + 1;
          if (is_digit(text[begin])) {
            while (end < text.size() && is_digit(text[end])) ++end;
          } else if (is_letter(text[begin])) {
            while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]))) ++end;
            if (end == text.size() || text[end] != '(') visit(text.substr(begin, end - begin), p);
          }
        }
      });
    }
  }

  const schema::Exported& root_;
  Seen avals_, symbolic_, dimensions_;
};

/// Meshes, and shardings over them.
/// Each mesh and each sharding is checked once for a function.
class ShardingCheck {
 public:
  /// `root` is for errors.
  ShardingCheck(const schema::Exported& root, Comparison& comparison)
      : root_(root), comparison_(comparison), specs_of_meshes_(&root) {}

  /// A sharding that a VJP shares with its primal has to make sense among the VJP's own meshes as well.
  void begin_function() { named_shardings_ = {}, shardings_ = {}; }

  /// Returns how many devices a mesh is of; that stops growing just above what a device count can be.
  std::uint64_t mesh(const schema::AbstractMesh& mesh, const Path& path) {
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

  void named_sharding(const schema::NamedSharding& sharding, const schema::Exported& e, const Path& path) {
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

  void sharding(const schema::Sharding& sharding, const schema::Exported& e, const Path& path) {
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

 private:
  /// Every axis has to be the mesh's, and may be used once.
  void spec(const schema::PartitionSpec& spec, const schema::AbstractMesh& mesh, const Path& path) {
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

  const schema::Exported& root_;
  Comparison& comparison_;
  FlatMap<std::uint64_t> meshes_;  // how many devices each is of
  Seen named_shardings_, shardings_;
  SeenPairs specs_of_meshes_;
};

/// The trees of arguments and results.
/// Trees share subtrees, each of which is looked at once.
class TreeCheck {
 public:
  /// `root` is for errors.
  TreeCheck(const schema::Exported& root, std::size_t buffer_size)
      : root_(root),
        max_nodes_(max_tree_nodes(buffer_size)),
        max_key_bytes_(max_tree_key_bytes(buffer_size)),
        max_auxdata_bytes_(max_tree_auxdata_bytes(buffer_size)) {}

  void begin_function() { nodes_ = 0; }

  /// A function takes positional and keyword arguments: a pair of a tuple and a dict.
  void arguments(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) {
    whole(root, avals, path);
    using Kind = schema::PyTreeDefKind;
    const auto is = [&](std::uint32_t i, Kind kind) { return root->children()->Get(i)->kind() == kind; };
    if (root->kind() != Kind::tuple || Values::length(root->children()) != 2 || !is(0, Kind::tuple) ||
        !is(1, Kind::dict))
      throw Error(path, "a tuple of the tuple of arguments and the dict of keyword arguments", "a different tree");
  }

  void results(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) { whole(root, avals, path); }

 private:
  struct Tree {
    std::uint64_t leaves = 0;
    std::uint64_t nodes = 0;  // by weight
    std::uint64_t depth = 0;
    std::uint64_t key_bytes = 0;  // what comparing its dicts' keys reads
    std::uint64_t auxdata_bytes = 0;
  };

  void whole(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) {
    const Tree tree = this->tree(required(root, path, ""), path);
    nodes_ += tree.nodes;
    if (nodes_ > max_nodes_)
      throw Error(path, "trees of at most " + to_string(max_nodes_) + " nodes (a dict counts as 2, a custom node as 4)",
                  "more");
    if (tree.key_bytes > max_key_bytes_) refuse_keys(path);
    if (tree.auxdata_bytes > max_auxdata_bytes_)
      throw Error(path,
                  "custom nodes with at most " + to_string(max_auxdata_bytes_) + " bytes of auxiliary data in total",
                  "more");
    require_count(path, "leaves, one for each aval", avals, tree.leaves);
  }

  /// Counts in a tree; they stop growing just above their limits, so they can't overflow.
  Tree tree(const schema::PyTreeDef& node, const Path& path) {
    if (node.kind() == schema::PyTreeDefKind::leaf && !node.children()) return {1, 1, 1, 0, 0};  // most nodes, by far
    if (const auto [known_tree, is_new] = trees_.insert(reinterpret_cast<std::uintptr_t>(&node)); !is_new)
      return known_tree;
    const std::uint32_t arity = Values::length(node.children());
    require_known(root_, "a kind of tree node", node.kind(), schema::PyTreeDefKind::custom, path, "kind");
    const bool is_leaf = node.kind() == schema::PyTreeDefKind::leaf;
    if (is_leaf || node.kind() == schema::PyTreeDefKind::none)
      require_count({&path, "children"}, "children of a leaf or None", 0, arity);
    if (node.kind() == schema::PyTreeDefKind::custom) required(node.custom_name(), path, "custom_name");
    Tree total{is_leaf, weight_of(node.kind()), 1, 0, Values::length(node.custom_auxdata())};
    if (node.kind() == schema::PyTreeDefKind::dict) total.key_bytes = keys(node, arity, {&path, "children_names"});
    for (std::uint32_t i = 0; i < arity; ++i) {
      const Tree child = tree(*node.children()->Get(i), {&path, "children", i});
      total.leaves = std::min(total.leaves + child.leaves, max_nodes_ + 1);
      total.nodes = std::min(total.nodes + child.nodes, max_nodes_ + 1);
      total.key_bytes = std::min(total.key_bytes + child.key_bytes, max_key_bytes_ + 1);
      total.auxdata_bytes = std::min(total.auxdata_bytes + child.auxdata_bytes, max_auxdata_bytes_ + 1);
      total.depth = std::max(total.depth, child.depth + 1);
    }
    if (total.depth > max_tree_depth)
      throw Error(path, "a tree of at most " + to_string(max_tree_depth) + " levels", "more");
    return trees_.insert(reinterpret_cast<std::uintptr_t>(&node)).first = total;
  }

  /// Dicts may share their keys, so what comparing them takes is limited, over all dicts here and for a whole tree.
  std::uint64_t keys(const schema::PyTreeDef& dict, std::uint32_t arity, const Path& path) {
    const auto* names = dict.children_names();
    require_count(path, "keys, one for each child", arity, Values::length(names));
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

  const schema::Exported& root_;
  const std::uint64_t max_nodes_;
  const std::uint64_t max_key_bytes_;
  const std::uint64_t max_auxdata_bytes_;
  std::uint64_t nodes_ = 0;  // of the trees of a function
  std::uint64_t key_bytes_ = 0;
  FlatMap<Tree> trees_;
};

/// The arguments or the results of a function, in either layout: indices, copies, and a sharding for each.
/// Two lists have to say the same of a value.
class ValueCheck {
 public:
  ValueCheck(const schema::Exported& root, AvalCheck& avals, ShardingCheck& shardings, Comparison& comparison)
      : avals_(avals), shardings_(shardings), comparison_(comparison), sharded_avals_(&root) {}

  void arguments(const schema::Exported& e, const Path& path) {
    values(Values::arguments(e), e, path, {"in_avals", "in_avals_idxs", "in_shardings", "in_shardings_idxs"});
  }
  void results(const schema::Exported& e, const Path& path) {
    values(Values::results(e), e, path, {"out_avals", "out_avals_idxs", "out_shardings", "out_shardings_idxs"});
  }

 private:
  struct Names {
    std::string_view avals, aval_indices, shardings, sharding_indices;
  };

  void values(const Values& v, const schema::Exported& e, const Path& path, const Names& names) {
    if (v.avals_by_index()) {
      for (std::uint32_t i = 0; i < v.size(); ++i)
        require_index(v.aval_indices->Get(i), Values::length(v.unique_avals), {&path, names.aval_indices, i});
    } else {
      each(v.avals, path, names.avals, [&](const auto& aval, const Path& p) { avals_.check(aval, p); });
    }
    if (v.avals_by_index()) listed_avals(v, {&path, names.avals});
    const Path shardings{&path, v.shardings_by_index() ? names.sharding_indices : names.shardings};
    require_count(shardings, "shardings, one for each aval", v.size(), v.sharding_count());
    if (v.shardings_by_index()) {
      for (std::uint32_t i = 0; i < v.size(); ++i)
        require_index(v.sharding_indices->Get(i), Values::length(v.unique_named_shardings) + std::uint64_t{1},
                      {&path, names.sharding_indices, i});
    }
    if (v.shardings_by_index())
      listed_shardings(v, e, {&path, names.shardings});
    else
      each(v.shardings, path, names.shardings, [&](const auto& s, const Path& p) { shardings_.sharding(s, e, p); });
    fit(v, path, names);
  }

  /// Writers since JAX 0.10.0 list all avals beside the distinct ones. Readers go by the indices, or by the list.
  void listed_avals(const Values& v, const Path& path) {
    const std::uint32_t listed = Values::length(v.avals);
    if (listed == 0) return;
    require_count(path, "avals, one for each index", v.size(), listed);
    for (std::uint32_t i = 0; i < listed; ++i) {
      const Path p{path.parent, path.name, i};
      const schema::AbstractValue &one = *v.avals->Get(i), &other = v.aval(i);
      // An aval that equals a checked one needs no check.
      if (&one == &other || comparison_.same_aval(one, other, p)) continue;
      avals_.check(one, p);
      refuse_copy(p, "the aval that its index stands for");
    }
  }

  void listed_shardings(const Values& v, const schema::Exported& e, const Path& path) {
    const std::uint32_t listed = Values::length(v.shardings);
    if (listed == 0) return;
    require_count(path, "shardings, one for each index", v.size(), listed);
    for (std::uint32_t i = 0; i < listed; ++i) {
      const Path p{path.parent, path.name, i};
      // An xla.OpSharding without a NamedSharding is older than the indices.
      const schema::Sharding& copy = *v.shardings->Get(i);
      const auto* one = copy.named_sharding();
      const auto* other = v.named_sharding(i);
      if (one == other) continue;
      const bool is_same = one && other && comparison_.same_sharding(*one, *other, p);
      if (is_same && copy.kind() <= schema::ShardingKind::named_sharding && copy.kind() >= schema::ShardingKind{})
        continue;
      shardings_.sharding(copy, e, p);
      if (!is_same) refuse_copy(p, "the sharding that its index stands for");
    }
  }

  /// A sharding has to fit the aval of its value.
  void fit(const Values& v, const Path& path, const Names& names) {
    if (v.shardings_by_index() && Values::length(v.unique_named_shardings) == 0) return;
    for (std::uint32_t i = 0; i < v.size(); ++i) {
      const auto* named = v.named_sharding(i);
      // Each argument may have a sharding of its own made of it.
      if (const auto* proto = v.hlo_sharding(i)) {
        const bool is_new = sharded_avals_.insert(v.aval(i), *proto);
        comparison_.spend((is_new ? 2 * steps_for_sharded_aval : 0) + proto->size() / 8, {&path, names.shardings, i});
      }
      if (!named) continue;
      if (sharded_avals_.insert(v.aval(i), *named))
        comparison_.spend(steps_for_sharded_aval + steps_for_axis * Values::length(v.aval(i).shape()),
                          {&path, names.shardings, i});
      const std::uint32_t partitions = Values::length(named->spec()->partitions()),
                          rank = Values::length(v.aval(i).shape());
      if (partitions > rank)
        throw Error({&path, v.shardings_by_index() ? names.sharding_indices : names.shardings, i},
                    "a sharding for the " + to_string(rank) + " dimensions of its aval",
                    "one with " + to_string(partitions) + " partitions");
    }
  }

  AvalCheck& avals_;
  ShardingCheck& shardings_;
  Comparison& comparison_;
  SeenPairs sharded_avals_;
};

// Two signatures, value by value.

void check_cotangent(const schema::AbstractValue& cotangent, const schema::AbstractValue& primal, const Path& path,
                     Comparison& comparison) {
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
  if (!comparison.same_shape(cotangent, primal, path))
    throw Error({&path, "shape"}, "the shape of the primal value", "a different shape");
}

/// A VJP takes what its primal takes, then a cotangent for each result, and returns one for each argument. Both have to
/// be checked. Throws Error.
void check_vjp(const schema::Exported& function, const schema::Exported& vjp, const Path& path,
               Comparison& comparison) {
  const Values primals = Values::arguments(function), results = Values::results(function);
  const Values arguments = Values::arguments(vjp), cotangents = Values::results(vjp);
  require_count({&path, "in_avals"}, "arguments (the primal's, and a cotangent for each of its results)",
                primals.size() + std::uint64_t{results.size()}, arguments.size());
  require_count({&path, "out_avals"}, "results (a cotangent for each of the primal's arguments)", primals.size(),
                cotangents.size());
  for (std::uint32_t i = 0; i < primals.size(); ++i) {
    const schema::AbstractValue &primal = primals.aval(i), &argument = arguments.aval(i);
    const Path p{&path, "in_avals", i};
    if (argument.dtype() != primal.dtype())
      throw Error({&p, "dtype"}, to_string(int(primal.dtype())) + ", the dtype of the primal's argument",
                  to_string(int(argument.dtype())));
    if (!comparison.same_shape(argument, primal, p))
      throw Error({&p, "shape"}, "the shape of the primal's argument", "a different shape");
    check_cotangent(cotangents.aval(i), primal, {&path, "out_avals", i}, comparison);
  }
  for (std::uint32_t i = 0; i < results.size(); ++i)
    check_cotangent(arguments.aval(primals.size() + i), results.aval(i), {&path, "in_avals", primals.size() + i},
                    comparison);
  if (!comparison.same_strings(vjp.platforms(), function.platforms(), {&path, "platforms"}))
    throw Error({&path, "platforms"}, "the platforms of the primal", "different platforms");
  const std::uint32_t devices = device_count(vjp), of_primal = device_count(function);
  if (devices != of_primal && devices != 1 && of_primal != 1)
    throw Error({&path, "nr_devices"}, to_string(of_primal) + " devices, the primal's number", to_string(devices));
}

void check_versions(const schema::Exported& e, const Path& path) {
  if (e.serialization_version() == 0) throw Error({&path, "serialization_version"}, "a version from 1", "0");
  if (const std::uint32_t version = e.calling_convention_version();
      version < oldest_calling_convention || version > newest_calling_convention)
    throw Error(
        {&path, "calling_convention_version"},
        "a version from " + to_string(oldest_calling_convention) + " to " + to_string(newest_calling_convention),
        to_string(version));
}

void check_device_counts(const schema::Exported& e, const Path& path) {
  const int count = e.nr_devices_short();
  if (count < 0) throw Error({&path, "nr_devices_short"}, "a positive number of devices", to_string(count));
  if (device_count(e) == 0) throw Error({&path, "nr_devices"}, "a positive number of devices", "0");
  if (count > 0 && e.nr_devices() > 0 && e.nr_devices() != static_cast<std::uint32_t>(count))
    throw Error({&path, "nr_devices_short"}, to_string(e.nr_devices()) + ", the other number of devices",
                to_string(count));
}

/// Only an effect's type is stored, so two effects of one type cannot be told apart.
void check_effects(const flatbuffers::Vector<flatbuffers::Offset<schema::Effect>>* effects, const Path& path) {
  std::vector<std::string_view> names;
  each(effects, *path.parent, path.name, [&](const auto& effect, const Path& p) {
    names.push_back(required(effect.type_name(), p, "type_name").string_view());
  });
  require_distinct(std::move(names), path, "effect");
}

void check_kept_arguments(const schema::Exported& e, std::uint32_t arguments, const Path& path) {
  const auto* kept = e.module_kept_var_idx();
  for (std::uint32_t i = 0; i < Values::length(kept); ++i) {
    const Path where{&path, "module_kept_var_idx", i};
    require_index(kept->Get(i), arguments, where);
    if (i > 0 && kept->Get(i - 1) >= kept->Get(i))
      throw Error(where, "indices in ascending order",
                  to_string(kept->Get(i)) + " after " + to_string(kept->Get(i - 1)));
  }
}

/// The parts of the check, which know the tables that all functions of an artifact share.
class Check {
 public:
  Check(const schema::Exported& root, std::size_t buffer_size)
      : root_(root),
        comparison_(max_comparisons(buffer_size)),
        avals_(root),
        shardings_(root, comparison_),
        values_(root, avals_, shardings_, comparison_),
        trees_(root, buffer_size) {}

  void exported(const schema::Exported& e, const Path& path) {
    shardings_.begin_function();
    trees_.begin_function();
    required(e.function_name(), path, "function_name");
    required(e.mlir_module_serialized(), path, "mlir_module_serialized");
    check_versions(e, path);
    require_distinct(e.platforms(), {&path, "platforms"}, "platform");
    if (Values::length(e.platforms()) == 0) throw Error({&path, "platforms"}, "at least one platform", "none");
    check_device_counts(e, path);

    distinct_tables(e, path);
    values_.arguments(e, path);
    values_.results(e, path);
    avals_.results_follow(Values::arguments(e), Values::results(e), path);
    trees_.arguments(e.in_tree(), Values::arguments(e).size(), {&path, "in_tree"});
    trees_.results(e.out_tree(), Values::results(e).size(), {&path, "out_tree"});

    check_effects(e.ordered_effects(), {&path, "ordered_effects"});
    check_effects(e.unordered_effects(), {&path, "unordered_effects"});
    disabled_checks(e, path);
    check_kept_arguments(e, Values::arguments(e).size(), path);
    global_constants(e, path);
    if (const auto* vjp = e.vjp()) {
      const Path inner{&path, "vjp"};
      if (++order_ > max_vjp_order) throw Error(inner, "at most " + to_string(max_vjp_order) + " VJPs", "more");
      exported(*vjp, inner);
      check_vjp(e, *vjp, inner, comparison_);
    }
  }

 private:
  void distinct_tables(const schema::Exported& e, const Path& path) {
    each(e.unique_avals(), path, "unique_avals", [&](const auto& aval, const Path& p) { avals_.check(aval, p); });
    each(e.unique_abstract_meshes(), path, "unique_abstract_meshes",
         [&](const auto& mesh, const Path& p) { shardings_.mesh(mesh, p); });
    each(e.unique_named_shardings(), path, "unique_named_shardings",
         [&](const auto& sharding, const Path& p) { shardings_.named_sharding(sharding, e, p); });
  }

  void disabled_checks(const schema::Exported& e, const Path& path) const {
    each(e.disabled_checks(), path, "disabled_checks", [&](const auto& disabled, const Path& p) {
      require_known(root_, "a kind of safety check", disabled.kind(), schema::DisabledSafetyCheckKind::shape_assertions,
                    p, "kind");
      if (disabled.kind() == schema::DisabledSafetyCheckKind::custom_call &&
          required(disabled.custom_call_target(), p, "custom_call_target").size() == 0)
        throw Error({&p, "custom_call_target"}, "the name of a custom call's target", "an empty string");
    });
  }

  /// A module for several platforms or shapes depends on constants that its caller defines.
  void global_constants(const schema::Exported& e, const Path& path) const {
    if (e.uses_global_constants()) return;
    const bool many = Values::length(e.platforms()) > 1;
    if (many || avals_.is_symbolic(Values::arguments(e)) || avals_.is_symbolic(Values::results(e)))
      throw Error({&path, "uses_global_constants"},
                  many ? "true, as there are several platforms" : "true, as there are symbolic dimensions", "false");
  }

  const schema::Exported& root_;
  Comparison comparison_;
  AvalCheck avals_;
  ShardingCheck shardings_;
  ValueCheck values_;
  TreeCheck trees_;
  std::size_t order_ = 0;  // of the VJP that is being checked
};

}  // namespace

void check(const schema::Exported& root, std::size_t buffer_size) { Check(root, buffer_size).exported(root, {}); }

}  // namespace jaxexp::wire

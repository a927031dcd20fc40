// JAX's types, enum members and functions as Python handed them over, and the names that the codec looks up often.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

/// A bounded map from bytes to immutable Python objects. It starts over when it is full: a process that reads so many
/// different things gains nothing from keeping some of them.
class Cache {
 public:
  explicit Cache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// An invalid object where the key is unknown.
  nb::object find(std::string_view key) {
    nb::ft_lock_guard guard(mutex_);
    const auto found = objects_.find(key);
    return found == objects_.end() ? nb::object() : found->second;
  }

  /// `object_size` is how many bytes the object takes, roughly.
  void insert(std::string_view key, const nb::object& object, std::size_t object_size) {
    const std::size_t size = key.size() + overhead + object_size;
    if (size > max_bytes_ / 2) return;
    Objects forgotten;  // outlives the lock: dropping Python objects may run any code
    nb::ft_lock_guard guard(mutex_);
    if (bytes_ + size > max_bytes_) {
      forgotten.swap(objects_);
      bytes_ = 0;
    }
    if (objects_.try_emplace(std::string(key), object).second) bytes_ += size;
  }

 private:
  static constexpr std::size_t overhead = 128;  // the place in the map, roughly

  using Objects = std::unordered_map<std::string, nb::object, wire::SeededHash, std::equal_to<>>;

  nb::ft_mutex mutex_;
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  Objects objects_;
};

/// A bounded map from immutable Python objects to values. It keeps the objects alive, so that no other object gets the
/// address of one of them, and starts over when it is full.
template <class Value>
class ObjectCache {
 public:
  explicit ObjectCache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Null where there is none. An object that cannot be hashed or compared equals nothing.
  std::shared_ptr<const Value> find(nb::handle object) {
    {
      nb::ft_lock_guard guard(mutex_);
      if (const auto found = content_.entries.find(object.ptr()); found != content_.entries.end())
        return found->second.value;
    }
    const std::optional<Py_hash_t> hash = hash_of(object);
    if (!hash) return {};
    for (const nb::object& candidate : candidates(*hash)) {
      if (!candidate.is_valid() || !is_equal(candidate, object)) continue;
      nb::ft_lock_guard guard(mutex_);
      const auto found = content_.entries.find(candidate.ptr());
      if (found != content_.entries.end()) return found->second.value;
    }
    return {};
  }

  /// `size` is how many bytes the object and the value take, roughly.
  void insert(nb::handle object, std::shared_ptr<const Value> value, std::size_t size) {
    size += overhead;
    const std::optional<Py_hash_t> hash = hash_of(object);
    if (!hash || size > max_bytes_ / 2) return;
    Content forgotten;  // outlives the lock: dropping Python objects may run any code
    nb::ft_lock_guard guard(mutex_);
    if (bytes_ + size > max_bytes_) {
      std::swap(forgotten, content_);
      bytes_ = 0;
    }
    if (!content_.entries.try_emplace(object.ptr(), Entry{nb::borrow(object), std::move(value)}).second) return;
    bytes_ += size;
    // The newest first. A hash says little (that of a tree knows no keys), so only some are compared.
    auto& same_hash = content_.by_hash[*hash];
    std::ranges::rotate(same_hash, same_hash.end() - 1);
    same_hash.front() = object.ptr();
  }

 private:
  static constexpr std::size_t overhead = 256;  // the places in the maps, roughly
  static constexpr std::size_t most_candidates = 4;

  struct Entry {
    nb::object object;
    std::shared_ptr<const Value> value;
  };
  struct Content {
    std::unordered_map<PyObject*, Entry> entries;
    std::unordered_map<Py_hash_t, std::array<PyObject*, most_candidates>> by_hash;  // of those in `entries`
  };

  std::array<nb::object, most_candidates> candidates(Py_hash_t hash) {
    std::array<nb::object, most_candidates> objects;
    nb::ft_lock_guard guard(mutex_);
    const auto found = content_.by_hash.find(hash);
    if (found != content_.by_hash.end())
      std::ranges::transform(found->second, objects.begin(), [](PyObject* object) { return nb::borrow(object); });
    return objects;
  }

  static std::optional<Py_hash_t> hash_of(nb::handle object) {
    const Py_hash_t hash = PyObject_Hash(object.ptr());
    if (hash != -1) return hash;
    forgive();
    return std::nullopt;
  }

  static bool is_equal(nb::handle one, nb::handle other) {
    const int equal = PyObject_RichCompareBool(one.ptr(), other.ptr(), Py_EQ);
    if (equal < 0) forgive();
    return equal > 0;
  }

  /// Errors of keys that users made are no reason to fail, but Ctrl-C is.
  static void forgive() {
    nb::python_error error;
    if (!error.matches(PyExc_Exception)) throw std::move(error);
  }

  nb::ft_mutex mutex_;
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  Content content_;
};

class EncodedTree;
class Symbolic;

// clang-format off
// Attributes of the object that bind() is given.
#define JAXEXP_BOUND(X)                                                                                     \
  X(ShapedArray) X(create_aval) X(with_sharding) X(SymbolicScope) X(constraints_of) X(add_constraint)       \
  X(dimension_of_terms) X(dimension_layout) X(dimension_variable) X(dimension_operation)                     \
  X(NamedSharding) X(PartitionSpec) X(AbstractMesh) X(AbstractDevice)                \
  X(dtype_of_kind) X(kind_of_dtype) X(PyTreeDef) X(tree_registry) X(tree_structure) X(custom_node_name)     \
  X(build_custom_node) X(resolve_library_nodes) X(effect_name)                                              \
  X(effect_of_name) X(safety_check_target) X(safety_check) X(sharding_of_proto) X(proto_of_sharding)

// Attributes of JAX's objects, keywords of its constructors, fields of Exported and of Facts.
#define JAXEXP_NAMES(X)                                                                                     \
  X(shape) X(dtype) X(weak_type) X(memory_space) X(mesh) X(spec) X(memory_kind) X(abstract_mesh)            \
  X(_partitions) X(reduced) X(unreduced) X(axis_sizes) X(axis_names) X(axis_types) X(abstract_device)       \
  X(device_kind) X(num_cores) X(platform) X(num_leaves) X(num_nodes) X(node_data) X(children)               \
  X(__getstate__) X(__setstate__) X(__new__) X(fun_name) X(in_tree) X(in_avals) X(out_tree) X(out_avals)    \
  X(_in_named_shardings) X(_out_named_shardings) X(nr_devices) X(platforms) X(ordered_effects)              \
  X(unordered_effects) X(disabled_safety_checks) X(calling_convention_version) X(module_kept_var_idx)       \
  X(uses_global_constants) X(mlir_module_serialized) X(_artifact) X(_hlo_shardings)                       \
  X(_facts) X(weak_arguments) X(weak_results) X(written)
// clang-format on

/// Immutable except for its caches, so that another bind() does not disturb a codec call that holds it.
struct JaxRefs {
  explicit JaxRefs(nb::handle jax);

  /// Names are members of `names`.
  using NamedValues = std::vector<std::pair<nb::handle, nb::object>>;
  /// The names as a tuple, one for all lists of the same names. There are few kinds of lists.
  nb::object names_of(const NamedValues& fields) const;

  /// Of a node of a treedef, which takes 60 to 67, and its part of a key.
  static constexpr std::size_t bytes_of_node = 96;
  /// Half of them are for 170,000 nodes, and a function uses at most 65,535 arguments: so all of its trees are kept.
  static constexpr std::size_t bytes_of_trees = std::size_t{32} << 20;

#define JAXEXP_MEMBER(name) nb::object name;
  JAXEXP_BOUND(JAXEXP_MEMBER)
  struct Names {
    JAXEXP_NAMES(JAXEXP_MEMBER)
  } names;
#undef JAXEXP_MEMBER

  bool tree_state_known;
  std::array<nb::object, 3> axis_types, memory_spaces;  // in the order of their enums, from 1
  std::vector<nb::object> dtypes;                       // by kind
  std::vector<nb::object> plain_avals;                  // what create_aval takes for plain shapes, by rank; or None
  nb::dict kinds_of_dtypes = new_dict();

  // Avals of constant shapes without a sharding, trees without custom nodes, and NamedShardings: all that they are made
  // of is the same in every call.
  mutable Cache avals{std::size_t{4} << 20};
  mutable Cache trees{bytes_of_trees};
  mutable Cache shardings{std::size_t{1} << 20};
  // What trees without custom nodes are in bytes.
  mutable ObjectCache<EncodedTree> encoded_trees{bytes_of_trees};
  // From the first symbolic dimension on.
  mutable std::shared_ptr<const Symbolic> symbolic;

 private:
  mutable std::vector<nb::object> field_names_;
};

/// The argument of the last bind(). Throws RuntimeError before its first call.
std::shared_ptr<const JaxRefs> jax_refs();

void bind(nb::handle jax);

/// Drops the references when the module is freed, while the interpreter can still take them back.
void unbind_with(nb::module_& module);

}  // namespace jaxexp::bindings

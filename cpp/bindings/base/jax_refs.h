// JAX's types, enum members and functions as Python handed them over, and the names that the codec looks up often.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/base/cache.h"
#include "bindings/base/nanobind.h"
#include "bindings/base/object_cache.h"
#include "bindings/base/owned.h"

namespace jaxexp::bindings {

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

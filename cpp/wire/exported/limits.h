// Limits of an artifact: readers refuse what exceeds them, so writers stay within them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exported_generated.h"

namespace jaxexp::wire {

/// FlatBuffers' offsets are signed 32-bit numbers in places, so the last byte has to lie below this.
inline constexpr std::size_t max_buffer_size = (std::size_t{1} << 31) - 1;

inline constexpr std::size_t max_tree_depth = 1000;
inline constexpr std::size_t max_vjp_order = 64;

/// How deep tables of any kind nest: a tree inside the last VJP, and a few levels below a tree's leaves.
inline constexpr std::size_t max_table_depth = max_tree_depth + max_vjp_order + 8;

/// Different tables may refer to one vector (a tuple and a list of the same children, avals of the same shape). Lengths
/// summed over all tables may be this large: a reader makes an object for each. Writers stay far below it.
constexpr std::size_t max_vector_elements(std::size_t buffer_size) { return (1u << 18) + 2 * buffer_size; }

/// How many steps comparing the tables of one artifact may take (about a word a step): lists that say one thing twice,
/// VJPs and their primals, specs and the axes of their meshes. Artifacts that share tables or say each thing once stay
/// far below.
constexpr std::uint64_t max_comparisons(std::size_t buffer_size) { return (1u << 18) + 8 * std::uint64_t{buffer_size}; }

/// What a reader does for each NamedSharding, each pair of an aval and its sharding, and each mesh takes as long as so
/// many of these steps.
inline constexpr std::uint64_t steps_for_sharding = 64, steps_for_sharded_aval = 384, steps_for_mesh = 128,
                               steps_for_axis = 4;  // of an aval or a mesh

/// A mesh may have this many axes: one of each size that a device count can be divided by, and plenty of size one.
inline constexpr std::size_t max_mesh_axes = 256;

/// A dimension that is an expression: convolutions nest one operation for each layer, and flattening multiplies sums
/// out.
inline constexpr std::size_t max_dimension_length = std::size_t{1} << 14;
inline constexpr std::size_t max_dimension_depth = 64;
inline constexpr std::int64_t max_dimension_exponent = 63;  // a larger power of 2 is no 64-bit number any more

/// How many different shapes may have one hash in Python.
inline constexpr std::uint32_t max_of_one_hash = 64;

inline constexpr std::size_t max_constraint_length = 1024;

/// How many steps JAX may take to make the symbolic dimensions and constraints of an artifact (a few microseconds
/// each): putting terms in order, and where equalities substitute sums for variables, multiplying them out.
constexpr std::uint64_t max_symbolic_steps(std::size_t buffer_size) {
  return (1u << 16) + std::uint64_t{buffer_size} / 6;
}

/// All calling conventions of main functions so far, and room for later ones. A reader knows which of them it can call.
inline constexpr std::uint32_t oldest_calling_convention = 6, newest_calling_convention = 99;

/// Equal subtrees are written once, so that a few bytes can describe a tree that fills the memory. The trees of a
/// function may have this many nodes, where a node counts as many times as `weight_of` says: as often as a reader makes
/// what takes a few hundred bytes. Every leaf takes 20 bytes (an aval and a sharding, by offset and by index, and the
/// offset to itself), so trees within `shared_tree_nodes` are always below it.
constexpr std::uint64_t max_tree_nodes(std::size_t buffer_size) { return (1u << 16) + std::uint64_t{buffer_size} / 4; }
constexpr std::uint64_t weight_of(schema::PyTreeDefKind kind) {
  return kind == schema::PyTreeDefKind::custom ? 4 : kind == schema::PyTreeDefKind::dict ? 2 : 1;
}

/// How long the keys of all dicts of a tree may be in total where they are compared. Equal dicts count each time.
constexpr std::uint64_t max_tree_key_bytes(std::size_t buffer_size) {
  return (1u << 24) + 256 * std::uint64_t{buffer_size};
}

/// How long the auxiliary data of all custom nodes of a tree may be in total. Equal nodes count each time: registered
/// functions get them each time.
constexpr std::uint64_t max_tree_auxdata_bytes(std::size_t buffer_size) {
  return (1u << 22) + 16 * std::uint64_t{buffer_size};
}

/// How many nodes one of a function's two trees may have for a writer to share its inner nodes.
constexpr std::uint64_t shared_tree_nodes(std::uint64_t leaves) { return (1u << 15) + 4 * leaves; }

}  // namespace jaxexp::wire

// The distinct nodes of a tree in an artifact, found by what they say: jax.export writes the same layers again and
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/base/nanobind.h"
#include "exported_generated.h"
#include "wire/base/flat_map.h"

namespace jaxexp::bindings {

namespace schema = wire::schema;

/// Of one tree, which wire::verify and wire::check have passed, and whose bytes stay where they are. Of two different
/// nodes with one hash, which nobody can choose, the newer one is found, and the other one may have two numbers.
class DistinctNodes {
 public:
  /// False where there is a custom node: such trees are made by building the pytree.
  bool add(const schema::PyTreeDef& root);

  /// Bytes that no other tree has: the distinct keys and nodes, in the order in which they end. Their number is that of
  /// the tree's bytes in the artifact, roughly, however large the tree is. Empty for a leaf.
  std::string_view key() const { return key_; }

  /// How many nodes the tree has.
  std::size_t size() const;

  /// All of them, as they are pickled.
  nb::list node_list();

 private:
  struct Node {
    std::size_t first_part, parts;  // in `parts_`: its kind and arity, then the numbers of its children and keys
    std::size_t leaves, nodes;      // of the tree below it, itself included
    Py_ssize_t first = -1;          // of these nodes, in the list
  };
  static constexpr std::uint32_t leaf = 0, custom = ~std::uint32_t{0};  // other nodes have numbers from 1

  std::uint32_t number_of(const schema::PyTreeDef& node);
  std::uint32_t number_of(std::span<const std::uint32_t> parts);
  std::uint32_t number_of(std::string_view text);
  void append_to(nb::list& list, Py_ssize_t& end, std::uint32_t number);
  nb::object state_of(const Node& node);
  std::span<const std::uint32_t> parts_of(const Node& node) const {
    return std::span(parts_).subspan(node.first_part, node.parts);
  }

  std::uint32_t root_ = leaf;
  std::string key_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> parts_;
  std::vector<std::uint32_t> open_;       // parts of the nodes that are being looked at
  wire::FlatMap<std::uint32_t> known_;    // numbers of nodes, by where they are
  wire::FlatMap<std::uint32_t> numbers_;  // and by a hash of what `open_` has of them
  wire::FlatMap<std::uint32_t> keys_;     // numbers of keys from 0, by their hashes
  std::vector<std::string_view> texts_;   // of keys
  std::vector<std::uint32_t> next_key_;   // by key, the one that came behind it
  std::uint32_t last_key_ = 0;
  std::vector<nb::object> key_objects_;
  nb::object leaf_state_;
};

}  // namespace jaxexp::bindings

// Where the leaves of a tree are, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

/// A longer path is cut.
inline constexpr std::size_t longest_path = 256;

inline std::string index_step(std::uint32_t i) { return '[' + std::to_string(i) + ']'; }
/// The step to a child of a custom node that has no name.
inline std::string child_step(std::uint32_t i) { return '<' + std::to_string(i) + '>'; }

template <class Step, class Leaf>
class LeafPaths {
 public:
  LeafPaths(const Step& step, const Leaf& leaf) : step_(step), leaf_(leaf) {}

  void add(const schema::PyTreeDef& node) {
    if (node.kind() == schema::PyTreeDefKind::leaf) return leaf_(shortened(path_, longest_path));
    if (is_empty(node)) return;
    const std::size_t above = path_.size();
    for (std::uint32_t i = 0; i < Values::length(node.children()); ++i) {
      if (above <= longest_path) path_ += step_(node, i);  // otherwise the path is cut before this
      add(*node.children()->Get(i));
      path_.resize(above);
    }
  }

 private:
  /// Whether a subtree has no leaves. Trees share subtrees, so each is looked at once.
  bool is_empty(const schema::PyTreeDef& node) {
    if (node.kind() == schema::PyTreeDefKind::leaf) return false;
    if (const auto [known, is_new] = empty_.insert(reinterpret_cast<std::uintptr_t>(&node)); !is_new) return known;
    bool empty = true;
    for (std::uint32_t i = 0; empty && i < Values::length(node.children()); ++i)
      empty = is_empty(*node.children()->Get(i));
    return empty_.insert(reinterpret_cast<std::uintptr_t>(&node)).first = empty;
  }

  const Step& step_;
  const Leaf& leaf_;
  std::string path_;
  FlatMap<bool> empty_;
};

/// Calls `leaf` with the path of each leaf, as in "[0]['weights'][1]". `step` writes the step to a child of a dict, a
/// tuple, a list or a custom node; `longest_path` bytes of a name are enough.
template <class Step, class Leaf>
void for_each_leaf(const schema::PyTreeDef& root, const Step& step, const Leaf& leaf) {
  LeafPaths<Step, Leaf>(step, leaf).add(root);
}

}  // namespace jaxexp::wire

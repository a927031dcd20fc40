// Trees share subtrees, each of which is looked at once.
#include "wire/exported/check_trees.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "wire/exported/requirements.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

using std::to_string;

void TreeCheck::arguments(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) {
  whole(root, avals, path);
  using Kind = schema::PyTreeDefKind;
  const auto is = [&](std::uint32_t i, Kind kind) { return root->children()->Get(i)->kind() == kind; };
  if (root->kind() != Kind::tuple || Values::length(root->children()) != 2 || !is(0, Kind::tuple) || !is(1, Kind::dict))
    throw Error(path, "a tuple of the tuple of arguments and the dict of keyword arguments", "another tree");
}

void TreeCheck::whole(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) {
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

TreeCheck::Tree TreeCheck::tree(const schema::PyTreeDef& node, const Path& path) {
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

std::uint64_t TreeCheck::keys(const schema::PyTreeDef& dict, std::uint32_t arity, const Path& path) {
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

void TreeCheck::refuse_keys(const Path& path) const {
  throw Error(path, "dicts with keys of at most " + to_string(max_key_bytes_) + " bytes in total", "more");
}

}  // namespace jaxexp::wire

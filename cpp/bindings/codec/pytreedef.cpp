// PyTreeDef <-> jaxlib's PyTreeDef.
//
// Whole trees cross as the node list that pickling a treedef uses, which is several times faster than walking its
// children or flattening a pytree. Nodes come in post-order, as (kind, arity, node data, custom type, leaves, nodes).
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/base/errors.h"
#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "exported_generated.h"
#include "wire/base/digest.h"
#include "wire/base/flat_map.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

using Kind = schema::PyTreeDefKind;

// The kinds of nodes in the node list that pickling a treedef uses.

/// Leaf, None, tuple, namedtuple, list, dict, and all others.
constexpr Kind kinds_of_states[] = {Kind::leaf, Kind::none, Kind::tuple, Kind::custom,
                                    Kind::list, Kind::dict, Kind::custom};
constexpr std::size_t named_tuple = 3;

Kind kind_of(std::size_t state) { return kinds_of_states[std::min(state, std::size(kinds_of_states) - 1)]; }

/// Of trees without custom nodes.
std::ptrdiff_t state_of_kind(Kind kind) {
  return std::ranges::find(kinds_of_states, kind) - std::begin(kinds_of_states);
}

// The distinct nodes of a tree in an artifact, found by what they say: jax.export writes the same layers again and
// again.
// A node is looked up by its kind and the numbers of its children and keys, which are looked up before it.

constexpr std::uint32_t a_text = 102;  // no kind of node

std::string_view bytes_of(std::span<const std::uint32_t> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

/// Of one tree, which wire::verify and wire::check have passed, and whose bytes stay where they are. Of two different
/// nodes with one hash, which nobody can choose, the newer one is found, and the other one may have two numbers.
class DistinctNodes {
 public:
  /// False where there is a custom node: such trees are made by building the pytree.
  bool add(const schema::PyTreeDef& root) {
    if (root.kind() != Kind::leaf) {
      nodes_.reserve(8);  // enough for most
      parts_.reserve(32);
      open_.reserve(32);
    }
    root_ = number_of(root);
    return root_ != custom;
  }

  /// Bytes that no other tree has: the distinct keys and nodes, in the order in which they end. Their number is that of
  /// the tree's bytes in the artifact, roughly, however large the tree is. Empty for a leaf.
  std::string_view key() const { return key_; }

  std::size_t size() const { return root_ == leaf ? 1 : nodes_[root_ - 1].nodes; }

  /// All of them, as they are pickled.
  nb::list node_list() {
    auto list = owned<nb::list>(PyList_New(static_cast<Py_ssize_t>(size())));
    key_objects_.resize(texts_.size());
    leaf_state_ = nb::make_tuple(0, 0, nb::none(), nb::none(), 1, 1);
    Py_ssize_t end = 0;
    append_to(list, end, root_);
    return list;
  }

 private:
  struct Node {
    std::size_t first_part, parts;  // in `parts_`: its kind and arity, then the numbers of its children and keys
    std::size_t leaves, nodes;      // of the tree below it, itself included
    Py_ssize_t first = -1;          // of these nodes, in the list
  };
  static constexpr std::uint32_t leaf = 0, custom = ~std::uint32_t{0};  // other nodes have numbers from 1

  std::uint32_t number_of(const schema::PyTreeDef& node) {
    const Kind kind = node.kind();
    if (kind == Kind::leaf) return leaf;
    if (kind == Kind::custom) return custom;
    const auto place = reinterpret_cast<std::uintptr_t>(&node);
    if (const auto [known, is_new] = known_.insert(place); !is_new) return known;
    const std::size_t start = open_.size();
    const auto* const children = node.children();
    const std::uint32_t arity = wire::Values::length(children);
    open_.push_back(static_cast<std::uint32_t>(kind));
    open_.push_back(arity);
    for (std::uint32_t i = 0; i < arity; ++i) {
      const std::uint32_t child = number_of(*children->Get(i));
      if (child == custom) return custom;
      open_.push_back(child);
    }
    if (kind == Kind::dict) {
      const auto* const keys = node.children_names();
      for (std::uint32_t i = 0; i < arity; ++i) open_.push_back(number_of(keys->Get(i)->string_view()));
    }
    const std::uint32_t number = number_of(std::span(open_).subspan(start));
    open_.resize(start);
    return known_.insert(place).first = number;
  }

  std::uint32_t number_of(std::span<const std::uint32_t> parts) {
    const auto [number, is_new] = numbers_.insert(wire::SeededHash()(bytes_of(parts)) | 1);
    if (!is_new && std::ranges::equal(parts, parts_of(nodes_[number - 1]))) return number;
    Node node{parts_.size(), parts.size(), 0, 1};
    for (const std::uint32_t child : parts.subspan(2, parts[1])) {
      node.leaves += child == leaf ? 1 : nodes_[child - 1].leaves;
      node.nodes += child == leaf ? 1 : nodes_[child - 1].nodes;
    }
    parts_.insert(parts_.end(), parts.begin(), parts.end());
    nodes_.push_back(node);
    key_ += bytes_of(parts);
    return number = static_cast<std::uint32_t>(nodes_.size());
  }

  /// Layers have the same keys in the same order, so the key that came next the last time is tried first.
  std::uint32_t number_of(std::string_view text) {
    if (!texts_.empty() && texts_[next_key_[last_key_]] == text) return last_key_ = next_key_[last_key_];
    const auto [number, is_new] = keys_.insert(wire::SeededHash()(text) | 1);
    if (is_new || texts_[number] != text) {
      const std::array<std::uint32_t, 2> head{a_text, static_cast<std::uint32_t>(text.size())};
      (key_ += bytes_of(head)) += text;
      number = static_cast<std::uint32_t>(texts_.size());
      texts_.push_back(text);
      next_key_.push_back(0);
    }
    next_key_[last_key_] = number;
    return last_key_ = number;
  }

  void append_to(nb::list& list, Py_ssize_t& end, std::uint32_t number) {
    const auto add = [&](nb::object state) { PyList_SET_ITEM(list.ptr(), end++, state.release().ptr()); };
    if (number == leaf) return add(leaf_state_);
    Node& node = nodes_[number - 1];
    if (node.first >= 0) {
      for (Py_ssize_t i = node.first, left = static_cast<Py_ssize_t>(node.nodes); left > 0; ++i, --left)
        add(nb::borrow(PyList_GET_ITEM(list.ptr(), i)));
      return;
    }
    const Py_ssize_t first = end;
    const auto parts = parts_of(node);
    for (const std::uint32_t child : parts.subspan(2, parts[1])) append_to(list, end, child);
    add(state_of(node));
    node.first = first;
  }

  nb::object state_of(const Node& node) {
    const auto parts = parts_of(node);
    const auto kind = static_cast<Kind>(parts[0]);
    const std::uint32_t arity = parts[1];
    nb::object keys = nb::none();
    if (kind == Kind::dict) {
      keys = owned(PyList_New(arity));
      for (std::uint32_t i = 0; i < arity; ++i) {
        nb::object& key = key_objects_[parts[2 + arity + i]];
        if (!key.is_valid()) key = text(texts_[parts[2 + arity + i]]);
        PyList_SET_ITEM(keys.ptr(), i, nb::object(key).release().ptr());
      }
    }
    return nb::make_tuple(state_of_kind(kind), arity, keys, nb::none(), node.leaves, node.nodes);
  }

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

}  // namespace

Offset<schema::PyTreeDef> Encoder::tree(nb::handle treedef) {
  if (jax_.tree_state_known) {
    if (const auto known = jax_.encoded_trees.find(treedef)) return known->write(writer_);
    encoded_tree_.reset();
    const NoCollections pause;  // the state is a tuple for each node
    const nb::tuple nodes = tuple_of(treedef.attr(names_.__getstate__)()[1]);
    const auto table = tree_of_state(nodes).table;
    if (encoded_tree_) {
      encoded_tree_->finish();
      const std::size_t size = encoded_tree_->size() + JaxRefs::bytes_of_node * nb::len(nodes);
      jax_.encoded_trees.insert(treedef, std::make_shared<const EncodedTree>(std::move(*encoded_tree_)), size);
    }
    return table;
  }
  const auto leaves = nb::cast<std::uint64_t>(treedef.attr(names_.num_leaves));
  const auto nodes = nb::cast<std::uint64_t>(treedef.attr(names_.num_nodes));
  const bool share = wire::weight_of(Kind::custom) * nodes <= wire::shared_tree_nodes(leaves);
  return tree_of_node(treedef, share, 1).table;
}

Encoder::TreeNode Encoder::tree_of_state(const nb::tuple& nodes) {
  constexpr const char* changed = "the tree's node list is not laid out as it was when this version was made";
  const auto fields_of = [&](nb::handle node) {
    if (!PyTuple_Check(node.ptr()) || PyTuple_GET_SIZE(node.ptr()) != 6) refuse(changed);
    return [=](Py_ssize_t i) { return nb::handle(PyTuple_GET_ITEM(node.ptr(), i)); };
  };
  const auto number = [&](nb::handle field) {
    const Py_ssize_t number = PyLong_AsSsize_t(field.ptr());
    if (number >= 0) return static_cast<std::size_t>(number);
    PyErr_Clear();
    refuse(changed);
  };
  const std::size_t size = nb::len(nodes);
  if (size == 0) refuse(changed);
  const std::size_t leaves = number(fields_of(nodes[size - 1])(4));  // the root comes last
  const auto weight = [&] {
    std::uint64_t sum = 0;
    for (nb::handle node : nodes) sum += wire::weight_of(kind_of(number(fields_of(node)(0))));
    return sum;
  };
  const std::uint64_t most = wire::shared_tree_nodes(leaves);
  const bool share = wire::weight_of(Kind::custom) * size <= most || weight() <= most;
  if (share) encoded_tree_.emplace();

  std::vector<TreeNode> pending;  // subtrees whose parent has not come yet
  pending.reserve(16);
  for (nb::handle node : nodes) {
    const auto field = fields_of(node);
    const std::size_t state = number(field(0));
    const Kind kind = kind_of(state);
    if (kind == Kind::leaf && !leaf_.IsNull()) {
      if (encoded_tree_ && !encoded_tree_->contains(leaf_)) encoded_tree_->add(Kind::leaf, leaf_, {}, {});
      pending.push_back({leaf_, 1});
      continue;
    }
    const std::size_t arity = number(field(1));
    const nb::handle data = field(2), type = field(3);
    if (arity > pending.size()) refuse(changed);
    const std::span children(pending.data() + (pending.size() - arity), arity);
    const TreeNode parent = state == named_tuple   ? tree_node(kind, children, {}, data, nb::none(), share)
                            : kind == Kind::custom ? tree_node(kind, children, {}, type, data, share)
                                                   : tree_node(kind, children, data, {}, {}, share);
    pending.resize(pending.size() - arity);
    pending.push_back(parent);
  }
  return pending.back();
}

Encoder::TreeNode Encoder::tree_of_node(nb::handle treedef, bool share, std::size_t level) {
  if (level > wire::max_tree_depth)
    refuse("the tree has more than " + std::to_string(wire::max_tree_depth) + " levels");
  std::vector<TreeNode> children;
  for (nb::handle child : treedef.attr(names_.children)()) children.push_back(tree_of_node(child, share, level + 1));
  const nb::object type_and_data = treedef.attr(names_.node_data)();
  if (type_and_data.is_none()) return tree_node(Kind::leaf, children, {}, {}, {}, share);
  const nb::object type = type_and_data[0], data = type_and_data[1];
  const auto is = [&](PyTypeObject& builtin) { return type.ptr() == reinterpret_cast<PyObject*>(&builtin); };
  if (is(*Py_TYPE(Py_None))) return tree_node(Kind::none, children, {}, {}, {}, share);
  if (is(PyTuple_Type)) return tree_node(Kind::tuple, children, {}, {}, {}, share);
  if (is(PyList_Type)) return tree_node(Kind::list, children, {}, {}, {}, share);
  if (is(PyDict_Type)) return tree_node(Kind::dict, children, data, {}, {}, share);
  return tree_node(Kind::custom, children, {}, type, data, share);
}

/// The layers of a model are alike, so a node is looked up by what it is made of: it is rarely a new one.
Encoder::TreeNode Encoder::tree_node(Kind kind, std::span<const TreeNode> children, nb::handle keys, nb::handle type,
                                     nb::handle auxdata, bool share) {
  std::uint32_t depth = 1;
  node_.clear();
  for (const TreeNode& child : children) {
    node_.push_back(child.table.o);
    depth = std::max(depth, child.depth + 1);
  }
  if (depth > wire::max_tree_depth)
    refuse("the tree has more than " + std::to_string(wire::max_tree_depth) + " levels");
  if (kind == Kind::custom) return {custom_node(type, auxdata, share), depth};

  nb::object key_list;
  std::span<PyObject*> key_objects;
  if (kind == Kind::dict) {
    key_list = owned(PySequence_Fast(keys.ptr(), "keys have to be a sequence"));
    key_objects = {PySequence_Fast_ITEMS(key_list.ptr()),
                   static_cast<std::size_t>(PySequence_Fast_GET_SIZE(key_list.ptr()))};
  }
  for (nb::handle key : key_objects) {
    // Dicts with keys that are not strings are written as custom nodes.
    if (!PyUnicode_Check(key.ptr()))
      return tree_node(Kind::custom, children, {}, reinterpret_cast<PyObject*>(&PyDict_Type), keys, share);
    std::uint32_t& offset = known(keys_, key);
    if (offset == 0) offset = string(key, "the key of a dict").o;
    node_.push_back(offset);
  }
  if (!share) return {plain_node(kind, children.size(), key_objects, share), depth};
  std::uint32_t& table =
      nodes_.insert(static_cast<std::uint8_t>(kind), wire::Writer::bytes_of<std::uint32_t>(node_)).first;
  if (table == 0 || (encoded_tree_ && !encoded_tree_->contains(table)))
    table = plain_node(kind, children.size(), key_objects, share).o;
  return {table, depth};
}

/// Of the parts in `node_`, children first.
Offset<schema::PyTreeDef> Encoder::plain_node(Kind kind, std::size_t arity, std::span<PyObject*> keys, bool share) {
  const auto first_key = node_.begin() + static_cast<std::ptrdiff_t>(arity);
  const Offsets<schema::PyTreeDef> children(node_.begin(), first_key);
  OffsetVector<wire::String> key_vector;
  if (kind == Kind::dict) key_vector = writer_.offsets<wire::String>(Offsets<wire::String>(first_key, node_.end()));
  const auto table = write_tree_node(writer_, kind, children, key_vector, {}, {}, share);
  if (encoded_tree_) {
    std::vector<std::string_view> texts;
    for (nb::handle key : keys) texts.push_back(utf8(key, "the key of a dict"));
    encoded_tree_->add(kind, table, children, texts);
  }
  if (kind == Kind::leaf) leaf_ = table;
  return table;
}

/// Its children are in `node_`.
Offset<schema::PyTreeDef> Encoder::custom_node(nb::handle type, nb::handle auxdata, bool share) {
  encoded_tree_.reset();  // registered functions may say something else the next time
  const Offsets<schema::PyTreeDef> children(node_.begin(), node_.end());
  const nb::object name_and_auxdata = jax_.custom_node_name(type, auxdata, children.size());
  const nb::object bytes = name_and_auxdata[1];
  const auto name = string(name_and_auxdata[0], "the serialized name of a pytree node type");
  if (!PyBytes_Check(bytes.ptr()))
    refuse("auxiliary data of a pytree node has to be bytes, found " + describe(bytes), Also::type_error);
  const auto* data = reinterpret_cast<const std::int8_t*>(PyBytes_AS_STRING(bytes.ptr()));
  const auto vector = writer_.scalars(std::span(data, static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))));
  return write_tree_node(writer_, Kind::custom, children, {}, name, vector, share);
}

nb::object Decoder::tree(const schema::PyTreeDef& root, const nb::object& avals, const wire::Path& where) {
  described_.reset();
  if (DistinctNodes nodes; jax_.tree_state_known && nodes.add(root)) {
    if (nb::object known = jax_.trees.find(nodes.key()); known.is_valid()) return known;
    const nb::object treedef = reading(where, "nodes that make a tree", [&] {
      const nb::object treedef = jax_.PyTreeDef.attr(names_.__new__)(jax_.PyTreeDef);
      treedef.attr(names_.__setstate__)(nb::make_tuple(jax_.tree_registry, nodes.node_list()));
      return treedef;
    });
    jax_.trees.insert(nodes.key(), treedef, JaxRefs::bytes_of_node * nodes.size());
    return treedef;
  }
  shareable_ = library_nodes_ = false;
  Py_ssize_t next_leaf = 0;
  const nb::object pytree = this->pytree(root, avals, next_leaf, where);
  nb::object treedef = reading(where, "a pytree", [&] { return jax_.tree_structure(pytree); });
  const auto leaves = nb::cast<Py_ssize_t>(treedef.attr(names_.num_leaves));
  if (leaves != next_leaf)
    throw wire::Error(where, "custom nodes that keep their " + std::to_string(next_leaf) + " leaves",
                      std::to_string(leaves));
  if (library_nodes_) {
    described_ = treedef;
    treedef = reading(where, "nodes that make a tree", [&] { return jax_.resolve_library_nodes(treedef); });
  }
  return treedef;
}

nb::object Decoder::pytree(const schema::PyTreeDef& node, const nb::object& leaves, Py_ssize_t& next_leaf,
                           const wire::Path& where) {
  if (node.kind() == Kind::leaf) return nb::borrow(PyTuple_GET_ITEM(leaves.ptr(), next_leaf++));
  if (node.kind() == Kind::none) return nb::none();
  nb::list children = new_list();
  for (std::uint32_t i = 0; i < wire::Values::length(node.children()); ++i)
    children.append(pytree(*node.children()->Get(i), leaves, next_leaf, {&where, "children", i}));
  switch (node.kind()) {
    case Kind::tuple: return nb::tuple(children);
    case Kind::dict: {
      nb::dict dict = new_dict();
      for (std::size_t i = 0; i < nb::len(children); ++i)
        dict[string(*node.children_names()->Get(static_cast<std::uint32_t>(i)))] = nb::borrow(children[i]);
      return dict;
    }
    case Kind::custom: {
      library_nodes_ = library_nodes_ || wire::is_library_node(node);
      const nb::object auxdata = node.custom_auxdata() ? bytes(*node.custom_auxdata()) : nb::bytes("", 0);
      return placing(where, [&] {
        return jax_.build_custom_node(string(*node.custom_name()), auxdata, children, parsed_auxdata_);
      });
    }
    default: return children;
  }
}

}  // namespace jaxexp::bindings

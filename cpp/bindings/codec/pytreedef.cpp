// PyTreeDef <-> jaxlib's PyTreeDef.
//
// Whole trees cross as the node list that pickling a treedef uses, which is several times faster than walking its
// children or flattening a pytree. Nodes come in post-order, as (kind, arity, node data, custom type, leaves, nodes).
#include <algorithm>

#include "bindings/base/errors.h"
#include "bindings/base/no_collections.h"
#include "bindings/base/owned.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/distinct_nodes.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/node_list.h"
#include "wire/exported/library_node.h"
#include "wire/exported/limits.h"

namespace jaxexp::bindings {

using Kind = schema::PyTreeDefKind;

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

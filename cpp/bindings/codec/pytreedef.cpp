// PyTreeDef <-> jaxlib's PyTreeDef.
//
// Whole trees cross as the node list that pickling a treedef uses, which is several times faster than walking its
// children or flattening a pytree. Nodes come in post-order, as (kind, arity, node data, custom type, leaves, nodes).
#include <algorithm>
#include <iterator>

#include "bindings/base/errors.h"
#include "bindings/base/no_collections.h"
#include "bindings/base/owned.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "wire/exported/library_node.h"
#include "wire/exported/limits.h"

namespace jaxexp::bindings {
namespace {

using Kind = schema::PyTreeDefKind;

/// The kinds of nodes in jaxlib's node list: leaf, None, tuple, namedtuple, list, dict, and all others.
constexpr Kind kinds[] = {Kind::leaf, Kind::none, Kind::tuple, Kind::custom, Kind::list, Kind::dict, Kind::custom};
constexpr int named_tuple = 3;

Kind kind_of(int state) { return kinds[std::min(static_cast<std::size_t>(state), std::size(kinds) - 1)]; }

/// Of trees without custom nodes.
int state_of(Kind kind) { return static_cast<int>(std::ranges::find(kinds, kind) - std::begin(kinds)); }

}  // namespace

Offset<schema::PyTreeDef> Encoder::tree(nb::handle treedef) {
  if (jax_.tree_state_known) {
    if (const auto known = jax_.encoded_trees.find(treedef)) return known->write(writer_);
    encoded_tree_.reset();
    const NoCollections pause;  // the state is a tuple for each node
    const nb::tuple nodes = tuple_of(treedef.attr(names_.__getstate__)()[1]);
    const auto table = tree_of_state(nodes).table;
    if (encoded_tree_) {
      constexpr std::size_t bytes_of_node = 128;  // in a treedef, with a key
      encoded_tree_->finish();
      const std::size_t size = encoded_tree_->size() + bytes_of_node * nb::len(nodes);
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
  const std::size_t size = nb::len(nodes);
  if (size == 0) refuse(changed);
  const auto leaves = nb::cast<std::uint64_t>(fields_of(nodes[size - 1])(4));  // the root comes last
  const auto weight = [&] {
    std::uint64_t sum = 0;
    for (nb::handle node : nodes) sum += wire::weight_of(kind_of(nb::cast<int>(fields_of(node)(0))));
    return sum;
  };
  const std::uint64_t most = wire::shared_tree_nodes(leaves);
  const bool share = wire::weight_of(Kind::custom) * size <= most || weight() <= most;
  if (share) encoded_tree_.emplace();

  std::vector<TreeNode> pending;  // subtrees whose parent has not come yet
  pending.reserve(16);
  for (nb::handle node : nodes) {
    const auto field = fields_of(node);
    const auto state = nb::cast<int>(field(0));
    const Kind kind = kind_of(state);
    if (kind == Kind::leaf && !leaf_.IsNull()) {
      if (encoded_tree_) encoded_tree_->add(Kind::leaf, leaf_, {}, {});
      pending.push_back({leaf_, 1});
      continue;
    }
    const auto arity = nb::cast<std::size_t>(field(1));
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

Encoder::TreeNode Encoder::tree_node(Kind kind, std::span<const TreeNode> children, nb::handle keys, nb::handle type,
                                     nb::handle auxdata, bool share) {
  Offsets<schema::PyTreeDef> tables;
  tables.reserve(children.size());
  std::uint32_t depth = 1;
  for (const TreeNode& child : children) {
    tables.push_back(child.table);
    depth = std::max(depth, child.depth + 1);
  }
  if (depth > wire::max_tree_depth)
    refuse("the tree has more than " + std::to_string(wire::max_tree_depth) + " levels");

  OffsetVector<wire::String> key_vector;
  std::vector<std::string_view> texts;
  if (kind == Kind::dict) {
    Offsets<wire::String> strings;
    strings.reserve(children.size());
    for (nb::handle key : tuple_of(keys)) {
      // Dicts with keys that are not strings are written as custom nodes.
      if (!PyUnicode_Check(key.ptr()))
        return tree_node(Kind::custom, children, {}, reinterpret_cast<PyObject*>(&PyDict_Type), keys, share);
      texts.push_back(utf8(key, "the key of a dict"));
      strings.push_back(writer_.string(texts.back()));
    }
    key_vector = writer_.offsets<wire::String>(strings);
  }
  Offset<wire::String> name;
  Offset<wire::Vector<std::int8_t>> auxdata_vector;
  if (kind == Kind::custom) {
    const nb::object name_and_auxdata = jax_.custom_node_name(type, auxdata, children.size());
    const nb::object bytes = name_and_auxdata[1];
    name = string(name_and_auxdata[0], "the serialized name of a pytree node type");
    if (!PyBytes_Check(bytes.ptr()))
      refuse("auxiliary data of a pytree node has to be bytes, found " + describe(bytes), Also::type_error);
    const auto* data = reinterpret_cast<const std::int8_t*>(PyBytes_AS_STRING(bytes.ptr()));
    auxdata_vector = writer_.scalars(std::span(data, static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))));
  }
  const auto table = write_tree_node(writer_, kind, tables, key_vector, name, auxdata_vector, share);
  if (kind == Kind::custom) encoded_tree_.reset();  // registered functions may say something else the next time
  if (encoded_tree_) encoded_tree_->add(kind, table, tables, texts);
  if (kind == Kind::leaf) leaf_ = table;
  return {table, depth};
}

/// Puts together what describes a tree without custom nodes: kinds, arities and keys in pre-order. What a tree shares
/// is described once; later occurrences are the number of the first one. So a key is no longer than the artifact,
/// however large the tree is.
class Decoder::TreeKey {
 public:
  explicit TreeKey(std::string& key) : key_(key) {}

  /// False where there is a custom node: such trees are made by building the pytree.
  bool add(const schema::PyTreeDef& node) {
    if (node.kind() == Kind::custom) return false;
    if (node.kind() == Kind::leaf) {
      key_ += static_cast<char>(Kind::leaf);
      return true;
    }
    if (refers_back(nodes_, &node, node_again)) return true;
    key_ += static_cast<char>(node.kind());
    const std::uint32_t arity = wire::Values::length(node.children());
    number(arity);
    if (node.kind() == Kind::dict)
      for (std::uint32_t i = 0; i < arity; ++i) add(*node.children_names()->Get(i));
    for (std::uint32_t i = 0; i < arity; ++i)
      if (!add(*node.children()->Get(i))) return false;
    return true;
  }

 private:
  static constexpr char node_again = 100, name_again = 101, name = 102;  // no kinds of nodes

  void add(const flatbuffers::String& text) {
    if (refers_back(names_, &text, name_again)) return;
    key_ += name;
    number(text.size());
    key_ += text.string_view();
  }

  bool refers_back(wire::FlatMap<std::uint32_t>& known, const void* table, char mark) {
    const auto [index, is_new] = known.insert(reinterpret_cast<std::uintptr_t>(table));
    if (is_new)
      index = known_++;
    else
      key_ += mark, number(index);
    return !is_new;
  }

  void number(std::uint32_t n) { key_.append(reinterpret_cast<const char*>(&n), sizeof n); }

  std::string& key_;
  std::uint32_t known_ = 0;
  wire::FlatMap<std::uint32_t> nodes_, names_;  // the numbers of their first occurrences
};

nb::object Decoder::tree(const schema::PyTreeDef& root, const nb::object& avals, const wire::Path& where) {
  key_.clear();
  described_.reset();
  if (jax_.tree_state_known && TreeKey(key_).add(root)) {
    if (nb::object known = jax_.trees.find(key_); known.is_valid()) return known;
    TreeState state;
    add_nodes(root, state);
    const nb::object treedef = reading(where, "nodes that make a tree", [&] {
      const nb::object treedef = jax_.PyTreeDef.attr(names_.__new__)(jax_.PyTreeDef);
      treedef.attr(names_.__setstate__)(nb::make_tuple(jax_.tree_registry, state.nodes));
      return treedef;
    });
    constexpr std::size_t bytes_of_node = 128;  // in a treedef, with a key
    jax_.trees.insert(key_, treedef, bytes_of_node * nb::len(state.nodes));
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

/// Appends the nodes of a tree without custom nodes, in post-order.
void Decoder::add_nodes(const schema::PyTreeDef& node, TreeState& state) {
  if (node.kind() == Kind::leaf) {
    state.nodes.append(state.leaf);
    ++state.leaves;
    return;
  }
  const auto start = static_cast<std::size_t>(nb::len(state.nodes));
  if (auto [run, is_new] = state.runs.insert(position(node)); !is_new) {
    // A subtree that occurred before: its nodes are there already.
    for (std::size_t i = run.start; i < run.start + run.nodes; ++i) state.nodes.append(nb::borrow(state.nodes[i]));
    state.leaves += run.leaves;
    return;
  }
  const std::size_t leaves_before = state.leaves;
  const std::uint32_t arity = wire::Values::length(node.children());
  for (std::uint32_t i = 0; i < arity; ++i) add_nodes(*node.children()->Get(i), state);
  nb::object keys = nb::none();
  if (node.kind() == Kind::dict) {
    keys = new_list();
    for (std::uint32_t i = 0; i < arity; ++i) nb::borrow<nb::list>(keys).append(string(*node.children_names()->Get(i)));
  }
  const std::size_t leaves = state.leaves - leaves_before,
                    nodes = static_cast<std::size_t>(nb::len(state.nodes)) - start + 1;
  state.nodes.append(nb::make_tuple(state_of(node.kind()), arity, keys, nb::none(), leaves, nodes));
  state.runs.insert(position(node)).first = {start, nodes, leaves};
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

// A node is looked up by its kind and the numbers of its children and keys, which are looked up before it.
#include "bindings/codec/distinct_nodes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "bindings/base/owned.h"
#include "bindings/base/text.h"
#include "bindings/codec/node_list.h"
#include "wire/base/digest.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

using Kind = schema::PyTreeDefKind;

constexpr std::uint32_t a_text = 102;  // no kind of node

std::string_view bytes_of(std::span<const std::uint32_t> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

}  // namespace

bool DistinctNodes::add(const schema::PyTreeDef& root) {
  if (root.kind() != Kind::leaf) {
    nodes_.reserve(8);  // enough for most
    parts_.reserve(32);
    open_.reserve(32);
  }
  root_ = number_of(root);
  return root_ != custom;
}

std::uint32_t DistinctNodes::number_of(const schema::PyTreeDef& node) {
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

std::uint32_t DistinctNodes::number_of(std::span<const std::uint32_t> parts) {
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
std::uint32_t DistinctNodes::number_of(std::string_view text) {
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

std::size_t DistinctNodes::size() const { return root_ == leaf ? 1 : nodes_[root_ - 1].nodes; }

nb::list DistinctNodes::node_list() {
  auto list = owned<nb::list>(PyList_New(static_cast<Py_ssize_t>(size())));
  key_objects_.resize(texts_.size());
  leaf_state_ = nb::make_tuple(0, 0, nb::none(), nb::none(), 1, 1);
  Py_ssize_t end = 0;
  append_to(list, end, root_);
  return list;
}

void DistinctNodes::append_to(nb::list& list, Py_ssize_t& end, std::uint32_t number) {
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

nb::object DistinctNodes::state_of(const Node& node) {
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

}  // namespace jaxexp::bindings

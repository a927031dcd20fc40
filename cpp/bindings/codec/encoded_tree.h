// A tree without custom nodes as plain data: what writing it takes, without asking Python again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/artifact/writer.h"
#include "wire/base/flat_map.h"

namespace jaxexp::bindings {

namespace schema = wire::schema;

/// The distinct nodes of one tree in the order in which they were written, children before their parents.
class EncodedTree {
 public:
  using Table = wire::Offset<schema::PyTreeDef>;

  bool contains(Table table) const { return numbers_.contains(table.o); }

  /// Notes a node that was just written as `table` and is not there yet. Keys are those of a dict, in order.
  void add(schema::PyTreeDefKind kind, Table table, std::span<const Table> children,
           std::span<const std::string_view> keys);

  /// Writes the tree; returns its root.
  Table write(wire::Writer& writer) const;

  /// About how much memory this takes.
  std::size_t size() const {
    return sizeof(*this) + nodes_.size() * sizeof(Node) + 4 * (children_.size() + ends_.size()) + text_.size();
  }

  /// Forgets what only `add` needs.
  void finish() { numbers_ = {}; }

 private:
  struct Node {
    schema::PyTreeDefKind kind;
    std::uint32_t arity;
  };

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> children_;  // of all nodes in order, by number
  std::vector<std::uint32_t> ends_;      // of the keys of all dicts, in `text_`
  std::string text_;
  wire::FlatMap<std::uint32_t> numbers_;  // by table, from 1
};

/// Writes one node. Equal ones are written once where they are shared.
EncodedTree::Table write_tree_node(wire::Writer& writer, schema::PyTreeDefKind kind,
                                   std::span<const EncodedTree::Table> children,
                                   wire::Offset<wire::Vector<wire::Offset<wire::String>>> keys,
                                   wire::Offset<wire::String> name, wire::Offset<wire::Vector<std::int8_t>> auxdata,
                                   bool share = true);

}  // namespace jaxexp::bindings

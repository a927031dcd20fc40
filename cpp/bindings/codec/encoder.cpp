// What the encoders of all types share: text and numbers out of Python objects, and errors that say where.
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

// Shared subtrees are one node, so this is as large as what is written.

using Kind = schema::PyTreeDefKind;

void EncodedTree::add(Kind kind, Table table, std::span<const Table> children, std::span<const std::string_view> keys) {
  nodes_.push_back({kind, static_cast<std::uint32_t>(children.size())});
  numbers_.insert(table.o).first = static_cast<std::uint32_t>(nodes_.size());
  for (const Table& child : children) children_.push_back(numbers_.insert(child.o).first - 1);
  for (std::string_view key : keys) {
    text_ += key;
    ends_.push_back(static_cast<std::uint32_t>(text_.size()));
  }
}

EncodedTree::Table EncodedTree::write(wire::Writer& writer) const {
  std::vector<Table> tables, children;
  std::vector<wire::Offset<wire::String>> keys;
  tables.reserve(nodes_.size());
  auto child = children_.begin();
  auto end = ends_.begin();
  std::size_t start = 0;
  for (const Node& node : nodes_) {
    children.clear();
    for (std::uint32_t i = 0; i < node.arity; ++i) children.push_back(tables[*child++]);
    wire::Offset<wire::Vector<wire::Offset<wire::String>>> names;
    if (node.kind == Kind::dict) {
      keys.clear();
      for (std::uint32_t i = 0; i < node.arity; ++i, start = *end++)
        keys.push_back(writer.string(std::string_view(text_).substr(start, *end - start)));
      names = writer.offsets<wire::String>(keys);
    }
    tables.push_back(write_tree_node(writer, node.kind, children, names, {}, {}));
  }
  return tables.back();
}

EncodedTree::Table write_tree_node(wire::Writer& writer, Kind kind, std::span<const EncodedTree::Table> children,
                                   wire::Offset<wire::Vector<wire::Offset<wire::String>>> keys,
                                   wire::Offset<wire::String> name, wire::Offset<wire::Vector<std::int8_t>> auxdata,
                                   bool share) {
  share = share || children.empty();
  const auto child_vector = children.empty() ? wire::Offset<wire::Vector<EncodedTree::Table>>()
                                             : writer.offsets<schema::PyTreeDef>(children, share);
  const auto write = [&] { return schema::CreatePyTreeDef(writer.fbb(), kind, child_vector, keys, name, auxdata); };
  if (!share) return write();
  return writer.table<schema::PyTreeDef>(
      wire::Table::tree, {static_cast<std::uint32_t>(kind), child_vector.o, keys.o, name.o, auxdata.o}, write);
}

std::string_view Encoder::utf8(nb::handle text, const char* what) const {
  if (!PyUnicode_Check(text.ptr()))
    refuse(std::string(what) + " has to be a string, found " + describe(text), Also::type_error);
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw nb::python_error();
    PyErr_Clear();
    refuse(std::string(what) + " has to be a string of Unicode characters, found lone surrogates");
  }
  return {data, static_cast<std::size_t>(size)};
}

std::uint64_t Encoder::integer(nb::handle number, std::uint64_t least, std::uint64_t most, const char* what) const {
  const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    refuse(std::string(what) + " has to be an integer, found " + describe(number), Also::type_error);
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || value < static_cast<long long>(least) || value > static_cast<long long>(most))
    refuse(std::string(what) + " has to be a number from " + std::to_string(least) + " to " + std::to_string(most) +
           ", the most that the format holds, found " + describe(number));
  return static_cast<std::uint64_t>(value);
}

void Encoder::refuse(const std::string& what, Also also) const { throw NotSerializable(where_, what, also); }

}  // namespace jaxexp::bindings

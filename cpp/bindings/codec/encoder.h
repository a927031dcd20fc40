// The state of one serialization, and what it can write: one method for each type, defined in the file of that type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/base/errors.h"
#include "bindings/base/jax_refs.h"
#include "bindings/base/nanobind.h"
#include "bindings/codec/symbolic.h"
#include "wire/artifact/trailer.h"
#include "wire/artifact/writer.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"

namespace jaxexp::bindings {

namespace schema = wire::schema;

/// Straight from the instance's dictionary if an attribute is there. An Exported looks up absent ones by a method in
/// Python, and its `__dict__` decodes all fields.
class Attributes {
 public:
  explicit Attributes(nb::handle object)
      : object_(object), present_(nb::steal(PyObject_GenericGetDict(object.ptr(), nullptr))) {
    if (!present_.is_valid()) PyErr_Clear();
  }

  nb::object operator[](const nb::object& name) const {
    const nb::object found = if_there(name);
    return found.is_valid() ? found : nb::object(object_.attr(name));
  }

  /// Not valid if the dictionary lacks it.
  nb::object if_there(const nb::object& name) const {
    return nb::borrow(present_.is_valid() ? PyDict_GetItemWithError(present_.ptr(), name.ptr()) : nullptr);
  }

 private:
  nb::handle object_;
  nb::object present_;
};

/// Which slots an artifact fills. The slots that readers since JAX 0.9.1 use are always filled; the others are chosen
/// here.
struct Form {
  /// Readers before 0.8.2 refuse all numbers but their own; later ones accept any, and go by the slots.
  std::uint16_t serialization_version = 12;  // what JAX 0.11.1 and newer write
  bool short_device_count = false;           // what readers before 0.8.2 know, beside the 32-bit one
  bool hlo_shardings = false;                // what readers before 0.9.0 know, beside NamedShardings
};

/// Objects are not valid if there is nothing to say.
struct Said {
  nb::object weak_arguments, weak_results;  // indices
  nb::object in_tree, out_tree;             // as the artifact describes them, with classes by their names

  /// All four, with None for what is not valid; or None.
  nb::object for_python() const {
    if (!weak_arguments.is_valid() && !weak_results.is_valid() && !in_tree.is_valid() && !out_tree.is_valid())
      return nb::none();
    const auto or_none = [](const nb::object& object) { return object.is_valid() ? object : nb::none(); };
    return nb::make_tuple(or_none(weak_arguments), or_none(weak_results), or_none(in_tree), or_none(out_tree));
  }
};

/// The distinct nodes of one tree in the order in which they were written, children before their parents.
class EncodedTree {
 public:
  using Table = wire::Offset<schema::PyTreeDef>;

  bool contains(Table table) const { return numbers_.contains(table.o); }

  /// Notes a node that was just written as `table` and is not there yet. Keys are those of a dict, in order.
  void add(schema::PyTreeDefKind kind, Table table, std::span<const Table> children,
           std::span<const std::string_view> keys);

  Table write(wire::Writer& writer) const;

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

template <class T>
using Offset = wire::Offset<T>;
template <class T>
using Offsets = std::vector<Offset<T>>;
template <class T>
using OffsetVector = Offset<wire::Vector<Offset<T>>>;

class Encoder {
 public:
  /// Adds to `notes`, if there are any, what a trailer says of functions.
  Encoder(const JaxRefs& jax, wire::Writer& writer, const Form& form, wire::Notes* notes)
      : jax_(jax), names_(jax.names), writer_(writer), form_(form), notes_(notes) {}

  /// Writes one Exported, innermost VJPs first. `exported_path` is empty for the primal, "vjp" for its VJP, and so on;
  /// `vjp` may be null.
  Offset<schema::Exported> exported(const Attributes& fields, const Said& said, std::string_view exported_path,
                                    std::span<const std::uint8_t> module, std::string_view jax_version,
                                    Offset<schema::Exported> vjp);

 private:
  struct TreeNode {
    Offset<schema::PyTreeDef> table;
    std::uint32_t depth;
  };

  struct Aval {
    Offset<schema::AbstractValue> table;
    bool is_weak = false;
    std::uint32_t exported = 0, number = 0;  // its number among the distinct ones of the Exported with that number
  };

  // pytreedef.cpp
  Offset<schema::PyTreeDef> tree(nb::handle treedef);
  TreeNode tree_of_state(const nb::tuple& nodes);
  TreeNode tree_of_node(nb::handle treedef, bool share, std::size_t level);
  TreeNode tree_node(schema::PyTreeDefKind kind, std::span<const TreeNode> children, nb::handle keys, nb::handle type,
                     nb::handle auxdata, bool share);
  Offset<schema::PyTreeDef> plain_node(schema::PyTreeDefKind kind, std::size_t arity, std::span<PyObject*> keys,
                                       bool share);
  Offset<schema::PyTreeDef> custom_node(nb::handle type, nb::handle auxdata, bool share);
  // aval.cpp
  Aval aval(nb::handle aval);
  Aval written_aval(nb::handle aval);
  Offset<wire::String> dimension(nb::handle dimension);
  Offset<wire::String> dimension(std::string_view text);
  void note_constraints(nb::handle dimension);
  schema::DType dtype(nb::handle dtype);
  // sharding.cpp
  Offset<schema::AbstractMesh> mesh(nb::handle mesh);
  Offset<schema::AbstractDevice> device(nb::handle abstract_device);
  Offset<schema::PartitionSpec> partition_spec(nb::handle spec);
  Offset<schema::PartitionSpecOneAxis> one_axis(nb::handle partition);
  OffsetVector<wire::String> axis_set(nb::handle names);
  Offset<schema::NamedSharding> named_sharding(nb::handle sharding);
  Offset<schema::Sharding> sharding(Offset<schema::NamedSharding> named_sharding);
  Offset<schema::Sharding> sharding(Offset<schema::NamedSharding> named_sharding, nb::handle hlo_sharding);
  // exported.cpp
  Offset<schema::Effect> effect(nb::handle effect);
  Offset<schema::DisabledSafetyCheck> safety_check(nb::handle check);

  /// A Python sequence as a tuple. Takes a handle, because accessors (as .attr returns) become any type unchecked.
  static nb::tuple tuple_of(nb::handle sequence) { return nb::tuple(sequence); }

  /// Calls a function with every element of a tuple. Errors name the field and the index.
  template <class Function>
  void for_each(const nb::tuple& sequence, std::string_view field, const Function& function) {
    std::int64_t index = 0;
    for (nb::handle element : sequence) at(field, index++), function(element);
  }
  /// A vector of what `write` makes of each element of a Python sequence.
  template <class T, class Write>
  OffsetVector<T> each(nb::handle sequence, std::string_view field, const Write& write) {
    Offsets<T> offsets;
    for_each(tuple_of(sequence), field, [&](nb::handle element) { offsets.push_back(write(element)); });
    return writer_.offsets<T>(offsets);
  }

  /// What was written for an object before, or 0. Keeps the object alive, so that no other object gets its address.
  template <class Value>
  Value& known(wire::FlatMap<Value>& map, nb::handle object) {
    const auto [value, is_new] = map.insert(reinterpret_cast<std::uintptr_t>(object.ptr()));
    if (is_new) kept_.push_back(nb::borrow(object));
    return value;
  }

  Offset<wire::String> string(nb::handle text, const char* what) { return writer_.string(utf8(text, what)); }
  std::string_view utf8(nb::handle text, const char* what) const;
  std::uint64_t integer(nb::handle number, std::uint64_t least, std::uint64_t most, const char* what) const;

  void at(std::string_view field, std::int64_t index = -1) { where_.name = field, where_.index = index; }
  [[noreturn]] void refuse(const std::string& what, Also also = Also::nothing) const;

  const JaxRefs& jax_;
  const JaxRefs::Names& names_;
  wire::Writer& writer_;
  const Form& form_;
  wire::Notes* const notes_;
  bool constraints_noted_ = false;
  wire::Path exported_, where_{&exported_};

  /// Distinct tables of one type, in the order of their first use. Numbers count from 1.
  template <class T>
  struct Distinct {
    std::uint32_t number(Offset<T> table) {
      const auto [number, is_new] = numbers.insert(table.o);
      if (is_new) tables.push_back(table), number = static_cast<std::uint32_t>(tables.size());
      return number;
    }
    wire::FlatMap<std::uint32_t> numbers;
    Offsets<T> tables;
  };

  struct Values {
    void reserve(std::size_t size) {
      avals.reserve(size), aval_indices.reserve(size);
      shardings.reserve(size), sharding_indices.reserve(size);
    }
    Offsets<schema::AbstractValue> avals;
    Offsets<schema::Sharding> shardings;
    std::vector<std::uint32_t> aval_indices, sharding_indices;
    std::vector<std::uint32_t> weak;  // for the trailer
  };
  // exported.cpp
  struct Parts;
  void write_lists(Parts& parts, const Values& in, const Values& out);
  Offset<schema::Exported> write_table(const Parts& parts, Offset<schema::Exported> vjp);
  /// `weak` has the indices of the values with a weak type; where it is not valid, the avals say which those are.
  Values values(nb::handle avals, const char* avals_field, nb::handle shardings, const char* shardings_field,
                const nb::object& weak);
  /// Puts beside each NamedSharding the xla.OpSharding, the only form that readers before JAX 0.9.0 know.
  void add_hlo_shardings(Values& values, nb::handle hlo_shardings, const char* field);

  std::vector<nb::object> kept_;
  wire::FlatMap<std::uint32_t> dimensions_, meshes_, specs_, keys_;  // offsets, by identity
  wire::FlatMap<Aval> avals_;
  Offset<schema::PyTreeDef> leaf_;
  std::optional<EncodedTree> encoded_tree_;  // while a tree is written that can be kept
  wire::Interner nodes_;                     // by the offsets of children and keys
  std::vector<std::uint32_t> node_;          // these offsets, of the node that is looked up

  // Of the Exported that is being written.
  std::uint32_t exported_number_ = 0;             // from 1
  wire::FlatMap<std::uint32_t> named_shardings_;  // offsets, by identity; they contain numbers of meshes
  Distinct<schema::AbstractValue> distinct_avals_;
  Distinct<schema::AbstractMesh> distinct_meshes_;
  Distinct<schema::NamedSharding> distinct_shardings_;
  Offsets<schema::Sharding> shardings_by_number_;  // unspecified first
};

}  // namespace jaxexp::bindings

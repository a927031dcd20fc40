// An artifact in plain Python objects, for which no JAX is needed.
#include <algorithm>
#include <string>
#include <string_view>

#include "bindings/artifact/artifact.h"
#include "bindings/artifact/library_nodes.h"
#include "bindings/base/objects.h"
#include "wire/base/dtype.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/leaf_paths.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

namespace schema = wire::schema;
using Texts = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

/// Trees share subtrees, so that the text of a small one could fill the memory.
constexpr std::size_t longest_tree = 1 << 16;

template <class Vector, class Describe>
nb::tuple each(const Vector* vector, const Describe& describe) {
  return new_tuple(wire::Values::length(vector),
                   [&](std::size_t i) { return describe(*vector->Get(static_cast<std::uint32_t>(i))); });
}

nb::tuple texts(const Texts* vector) {
  return each(vector, [](const flatbuffers::String& string) { return text(string.string_view()); });
}

/// The beginning of a text as Python shows it, long enough for `most` bytes of that.
std::string repr(std::string_view shown, std::size_t most) {
  return nb::repr(text(wire::shortened(shown, most))).c_str();
}

/// The key of a child in front of the child: "mu=" for ".mu", "['w']: " for "['w']", nothing for "<0>".
std::string label(const std::string& key) {
  if (key.starts_with('.')) return key.substr(1) + '=';
  return key.starts_with('[') ? key + ": " : "";
}

/// A node as JAX prints one: "{'a': (*, [*]), 'b': None}". Stops where the text is long enough.
void add_tree(const schema::PyTreeDef& node, LibraryNodes& library_nodes, std::string& out) {
  const auto children = [&](const char* open, const char* close, const nb::object& keys = nb::none()) {
    out += open;
    for (std::uint32_t i = 0; i < wire::Values::length(node.children()) && out.size() <= longest_tree; ++i) {
      if (i > 0) out += ", ";
      if (node.kind() == schema::PyTreeDefKind::dict)
        out += repr(node.children_names()->Get(i)->string_view(), longest_tree) + ": ";
      if (!keys.is_none()) out += label(nb::cast<std::string>(keys[i]));
      add_tree(*node.children()->Get(i), library_nodes, out);
    }
    out += close;
  };
  switch (node.kind()) {
    case schema::PyTreeDefKind::leaf: out += '*'; break;
    case schema::PyTreeDefKind::none: out += "None"; break;
    case schema::PyTreeDefKind::tuple: children("(", wire::Values::length(node.children()) == 1 ? ",)" : ")"); break;
    case schema::PyTreeDefKind::list: children("[", "]"); break;
    case schema::PyTreeDefKind::dict: children("{", "}"); break;
    case schema::PyTreeDefKind::custom:
      if (const nb::object known = library_nodes[node]; !known.is_none()) {
        const nb::object name = known[0];
        out += name.is_none() ? wire::shortened(node.custom_name()->string_view(), longest_tree)
                              : nb::cast<std::string>(name);
        children("(", ")", known[1]);
      } else {
        out += wire::shortened(node.custom_name()->string_view(), longest_tree), children("(", ")");
      }
      break;
  }
}

nb::object tree(const schema::PyTreeDef& root, LibraryNodes& library_nodes) {
  std::string out;
  add_tree(root, library_nodes, out);
  return text(wire::shortened(out, longest_tree));
}

/// How many bytes Python may need for the paths of a tree's leaves; those of further leaves are cut to so many. A leaf
/// takes a few bytes in an artifact.
constexpr std::size_t most_paths = std::size_t{8} << 20, cut_path = 32;

/// Python may need four bytes for each character of a text that is not ASCII.
std::size_t bytes_in_python(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; }) ? text.size()
                                                                                                : 4 * text.size();
}

/// Where the leaves of a tree are. A child of a custom node has its name, where one is known.
nb::tuple leaves(const schema::PyTreeDef& root, LibraryNodes& library_nodes) {
  nb::list found = new_list();
  const auto step = [&](const schema::PyTreeDef& node, std::uint32_t i) {
    if (node.kind() == schema::PyTreeDefKind::dict)
      return '[' + repr(node.children_names()->Get(i)->string_view(), wire::longest_path) + ']';
    if (node.kind() != schema::PyTreeDefKind::custom) return wire::index_step(i);
    const nb::object known = library_nodes[node];
    return known.is_none() ? wire::child_step(i) : nb::cast<std::string>(known[1][i]);
  };
  std::size_t left = most_paths;
  wire::for_each_leaf(root, step, [&](const std::string& path) {
    const std::size_t size = bytes_in_python(path);
    found.append(text(size <= left ? path : wire::shortened(path, cut_path)));
    left -= std::min(size, left);
  });
  return nb::tuple(found);
}

/// The arguments and the results of a function. Values share avals, shardings and texts, and so do their descriptions.
class ValueDescriber {
 public:
  explicit ValueDescriber(const schema::Exported& e) : e_(e) {}

  /// For each value its dtype's name, dimensions as texts, its memory space's number, and its sharding.
  nb::tuple all(const wire::Values& values) {
    return new_tuple(values.size(), [&](std::size_t i) { return value(values, static_cast<std::uint32_t>(i)); });
  }

 private:
  using Objects = wire::FlatMap<nb::object>;  // by the places of tables

  template <class T, class Describe>
  static nb::object once(Objects& known, const T& table, const Describe& describe) {
    const auto key = reinterpret_cast<std::uintptr_t>(&table);
    if (const auto [object, is_new] = known.insert(key); !is_new) return object;
    nb::object described = describe(table);
    known.insert(key).first = described;
    return described;
  }

  nb::object value(const wire::Values& values, std::uint32_t i) {
    const schema::AbstractValue& aval = values.aval(i);
    const nb::object dims = once(dims_, aval, [&](const auto& table) { return strings(table.shape()); });
    const int kind = static_cast<int>(aval.dtype());
    nb::object& dtype = dtypes_.insert(static_cast<std::uint64_t>(kind) + 256).first;
    if (!dtype.is_valid()) dtype = text(wire::dtype_name(kind));
    return nb::make_tuple(dtype, dims, static_cast<int>(aval.memory_space()), sharding(values, i));
  }

  /// (mesh axes with their sizes, names of mesh axes for each axis of the array, memory kind); the bytes of an
  /// xla.OpSharding where that is all that is known; None where the sharding is unspecified.
  nb::object sharding(const wire::Values& values, std::uint32_t i) {
    if (const auto* named = values.named_sharding(i)) {
      return once(shardings_, *named, [&](const schema::NamedSharding& table) -> nb::object {
        const nb::object memory =
            table.memory_kind() ? text(table.memory_kind()->string_view()) : nb::object(nb::none());
        const nb::object mesh = once(meshes_, wire::mesh_of(table, e_), [&](const auto& m) { return this->mesh(m); });
        const nb::object spec = once(specs_, *table.spec(), [&](const auto& s) { return this->spec(s); });
        return nb::make_tuple(mesh, spec, memory);
      });
    }
    if (const auto* proto = values.hlo_sharding(i))
      return once(shardings_, *proto, [](const auto& bytes) { return nb::bytes(bytes.data(), bytes.size()); });
    return nb::none();
  }

  nb::object mesh(const schema::AbstractMesh& mesh) {
    nb::list axes = new_list();
    for (std::uint32_t i = 0; i < wire::Values::length(mesh.axis_names()); ++i)
      axes.append(nb::make_tuple(string(*mesh.axis_names()->Get(i)), mesh.axis_sizes()->Get(i)));
    return nb::tuple(axes);
  }

  nb::object spec(const schema::PartitionSpec& spec) {
    const auto axes = [&](const schema::PartitionSpecOneAxis& axis) { return strings(axis.axes()); };
    return each(spec.partitions(), axes);
  }

  nb::object strings(const Texts* vector) {
    return each(vector, [&](const flatbuffers::String& one) { return string(one); });
  }

  nb::object string(const flatbuffers::String& one) {
    return once(texts_, one, [](const auto& string) { return text(string.string_view()); });
  }

  const schema::Exported& e_;
  Objects dims_, dtypes_, shardings_, meshes_, specs_, texts_;
};

}  // namespace

Facts Artifact::describe(const nb::object& library_node) const {
  const schema::Exported& e = *exported_;
  LibraryNodes library_nodes(library_node);
  const auto effect = [](const schema::Effect& effect) { return text(effect.type_name()->string_view()); };
  nb::dict facts = new_dict();
  facts["fun_name"] = text(e.function_name()->string_view());
  facts["writer"] = text(writer());
  facts["jax_version"] = e.jax_version() ? text(e.jax_version()->string_view()) : nb::object(nb::none());
  facts["serialization_version"] = serialization_version();
  facts["calling_convention_version"] = e.calling_convention_version();
  facts["platforms"] = texts(e.platforms());
  facts["nr_devices"] = nr_devices();
  ValueDescriber values(e);
  facts["arguments"] = values.all(wire::Values::arguments(e));
  facts["results"] = values.all(wire::Values::results(e));
  nb::list kept = new_list();
  for (std::uint32_t i = 0; i < wire::Values::length(e.module_kept_var_idx()); ++i)
    kept.append(e.module_kept_var_idx()->Get(i));
  facts["kept"] = nb::tuple(kept);
  facts["in_tree"] = tree(*e.in_tree(), library_nodes);
  facts["out_tree"] = tree(*e.out_tree(), library_nodes);
  facts["in_leaves"] = leaves(*e.in_tree(), library_nodes);
  facts["out_leaves"] = leaves(*e.out_tree(), library_nodes);
  facts["ordered_effects"] = each(e.ordered_effects(), effect);
  facts["unordered_effects"] = each(e.unordered_effects(), effect);
  facts["disabled_checks"] = each(e.disabled_checks(), [](const schema::DisabledSafetyCheck& check) {
    const bool call = check.kind() == schema::DisabledSafetyCheckKind::custom_call;
    return nb::make_tuple(static_cast<int>(check.kind()),
                          call ? text(check.custom_call_target()->string_view()) : nb::object(nb::none()));
  });
  return facts;
}

}  // namespace jaxexp::bindings

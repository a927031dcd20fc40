// An artifact in plain Python objects, for which no JAX is needed.
#include <string>
#include <string_view>

#include "bindings/artifact/artifact.h"
#include "bindings/base/text.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/dtype_name.h"
#include "wire/exported/library_node.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

namespace schema = wire::schema;
using Texts = flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>;

/// Trees share subtrees, so that the text of a small one could fill the memory.
constexpr std::size_t longest_tree = 1 << 16;
constexpr std::size_t longest_path = 256;

template <class Vector, class Describe>
nb::tuple each(const Vector* vector, const Describe& describe) {
  nb::list described;
  for (std::uint32_t i = 0; i < wire::Values::length(vector); ++i) described.append(describe(*vector->Get(i)));
  return nb::tuple(described);
}

nb::tuple texts(const Texts* vector) {
  return each(vector, [](const flatbuffers::String& string) { return text(string.string_view()); });
}

/// Trees as texts.
class Trees {
 public:
  /// `library_node` says of auxiliary data which class and which keys of children it describes, or None.
  explicit Trees(const nb::object& library_node) : library_node_(library_node) {}

  nb::object tree(const schema::PyTreeDef& root) {
    std::string out;
    add_tree(root, out);
    if (out.size() > longest_tree) out.resize(longest_tree), out += "...";
    return text(out);
  }

  nb::tuple leaves(const schema::PyTreeDef& root) {
    std::string path;
    nb::list out;
    add_leaves(root, path, out);
    return nb::tuple(out);
  }

 private:
  /// A node as JAX prints one: "{'a': (*, [*]), 'b': None}".
  void add_tree(const schema::PyTreeDef& node, std::string& out) {
    if (out.size() > longest_tree) return;
    const auto children = [&](const char* open, const char* close, const nb::object& keys = nb::none()) {
      out += open;
      for (std::uint32_t i = 0; i < wire::Values::length(node.children()); ++i) {
        if (i > 0) out += ", ";
        if (node.kind() == schema::PyTreeDefKind::dict)
          out += std::string(nb::repr(text(node.children_names()->Get(i)->string_view())).c_str()) + ": ";
        if (!keys.is_none()) out += label(nb::cast<std::string>(keys[i]));
        add_tree(*node.children()->Get(i), out);
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
        if (const nb::object known = described(node); !known.is_none())
          out += nb::cast<std::string>(known[0]), children("(", ")", known[1]);
        else
          out += node.custom_name()->str(), children("(", ")");
        break;
    }
  }

  /// Where the leaves of a tree are, as in "[0]['weights'][1]"; a child of a custom node is "<0>".
  void add_leaves(const schema::PyTreeDef& node, std::string& path, nb::list& out) {
    if (node.kind() == schema::PyTreeDefKind::leaf) {
      out.append(text(wire::shortened(path, longest_path)));
      return;
    }
    const std::size_t above = path.size();
    for (std::uint32_t i = 0; i < wire::Values::length(node.children()); ++i) {
      if (above <= longest_path) path += step(node, i);  // otherwise the path is cut before this
      add_leaves(*node.children()->Get(i), path, out);
      path.resize(above);
    }
  }

  std::string step(const schema::PyTreeDef& node, std::uint32_t i) {
    if (node.kind() == schema::PyTreeDefKind::dict)
      return '[' + std::string(nb::repr(text(node.children_names()->Get(i)->string_view())).c_str()) + ']';
    if (node.kind() != schema::PyTreeDefKind::custom) return '[' + std::to_string(i) + ']';
    const nb::object known = described(node);
    return known.is_none() ? '<' + std::to_string(i) + '>' : nb::cast<std::string>(known[1][i]);
  }

  /// A key of a child in front of the child: "mu=" for ".mu", "['w']: " for "['w']", nothing for "<0>".
  static std::string label(const std::string& key) {
    if (key.starts_with('.')) return key.substr(1) + '=';
    return key.starts_with('[') ? key + ": " : "";
  }

  /// The class and the keys of the children that a custom node says of itself; None where it says nothing.
  nb::object described(const schema::PyTreeDef& node) {
    const auto* data = node.custom_auxdata();
    if (!data || library_node_.is_none() || !wire::is_library_node(node)) return nb::none();
    const auto [known, is_new] = described_.insert(reinterpret_cast<std::uintptr_t>(data));
    if (is_new) known = library_node_(nb::bytes(data->data(), data->size()));
    const bool fits = !known.is_none() && nb::len(nb::object(known[1])) == wire::Values::length(node.children());
    return fits ? known : nb::none();
  }

  const nb::object library_node_;
  wire::FlatMap<nb::object> described_;  // by the position of the data
};

nb::tuple mesh(const schema::AbstractMesh& mesh) {
  nb::list axes;
  for (std::uint32_t i = 0; i < wire::Values::length(mesh.axis_names()); ++i)
    axes.append(nb::make_tuple(text(mesh.axis_names()->Get(i)->string_view()), mesh.axis_sizes()->Get(i)));
  return nb::tuple(axes);
}

/// (mesh axes with their sizes, names of mesh axes for each axis of the array, memory kind); the bytes of an
/// xla.OpSharding where that is all that is known; None where the sharding is unspecified.
nb::object sharding(const schema::Exported& e, const wire::Values& values, std::uint32_t i) {
  if (const auto* named = values.named_sharding(i)) {
    const auto axes = [](const schema::PartitionSpecOneAxis& axis) { return texts(axis.axes()); };
    const nb::object memory = named->memory_kind() ? text(named->memory_kind()->string_view()) : nb::object(nb::none());
    return nb::make_tuple(mesh(wire::mesh_of(*named, e)), each(named->spec()->partitions(), axes), memory);
  }
  if (const auto* proto = values.hlo_sharding(i)) return nb::bytes(proto->data(), proto->size());
  return nb::none();
}

/// For each value its dtype's name, dimensions as texts, its memory space's number, and its sharding.
nb::tuple all(const schema::Exported& e, const wire::Values& values) {
  nb::list described;
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const schema::AbstractValue& aval = values.aval(i);
    described.append(nb::make_tuple(text(wire::dtype_name(static_cast<int>(aval.dtype()))), texts(aval.shape()),
                                    static_cast<int>(aval.memory_space()), sharding(e, values, i)));
  }
  return nb::tuple(described);
}

}  // namespace

nb::dict Artifact::describe(const nb::object& library_node) const {
  const schema::Exported& e = *exported_;
  Trees trees(library_node);
  const auto effect = [](const schema::Effect& effect) { return text(effect.type_name()->string_view()); };
  nb::dict facts;
  facts["fun_name"] = text(e.function_name()->string_view());
  facts["writer"] = nb::str(writer().data(), writer().size());
  facts["jax_version"] = e.jax_version() ? text(e.jax_version()->string_view()) : nb::object(nb::none());
  facts["serialization_version"] = serialization_version();
  facts["calling_convention_version"] = e.calling_convention_version();
  facts["platforms"] = texts(e.platforms());
  facts["nr_devices"] = nr_devices();
  facts["arguments"] = all(e, wire::Values::arguments(e));
  facts["results"] = all(e, wire::Values::results(e));
  nb::list kept;
  for (std::uint32_t i = 0; i < wire::Values::length(e.module_kept_var_idx()); ++i)
    kept.append(e.module_kept_var_idx()->Get(i));
  facts["kept"] = nb::tuple(kept);
  facts["in_tree"] = trees.tree(*e.in_tree());
  facts["out_tree"] = trees.tree(*e.out_tree());
  facts["in_leaves"] = trees.leaves(*e.in_tree());
  facts["out_leaves"] = trees.leaves(*e.out_tree());
  facts["ordered_effects"] = each(e.ordered_effects(), effect);
  facts["unordered_effects"] = each(e.unordered_effects(), effect);
  facts["disabled_checks"] = each(e.disabled_checks(), [](const schema::DisabledSafetyCheck& check) {
    const bool call = check.kind() == schema::DisabledSafetyCheckKind::custom_call;
    return nb::make_tuple(static_cast<int>(check.kind()),
                          call ? text(check.custom_call_target()->string_view()) : nb::object(nb::none()));
  });
  facts["module"] = unchecked_module();
  return facts;
}

}  // namespace jaxexp::bindings

// Texts of an artifact for `check` of jaxexp/_kernel/artifact/texts.py.
#pragma once

#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "wire/artifact/opened.h"

namespace jaxexp::bindings {

/// Metadata, and nodes: where, name, data, and how many children.
using NodeForPython = nb::typed<nb::tuple, nb::str, nb::str, nb::bytes, nb::int_>;
using TextsForPython =
    nb::typed<nb::tuple, nb::typed<nb::dict, nb::str, nb::str>, nb::typed<nb::tuple, NodeForPython, nb::ellipsis>>;

inline TextsForPython to_python(const wire::Texts& texts) {
  nb::dict metadata = new_dict();
  for (const auto& [key, value] : texts.metadata) metadata[text(key)] = text(value);
  const nb::tuple nodes = new_tuple(texts.nodes.size(), [&](std::size_t i) {
    const wire::Texts::Node& node = texts.nodes[i];
    return nb::make_tuple(text(node.path), text(node.name), to_bytes(node.data), node.children);
  });
  return TextsForPython(nb::make_tuple(metadata, nodes));
}

}  // namespace jaxexp::bindings

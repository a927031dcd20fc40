// Pytree nodes of classes that nobody registered: jaxexp/_kernel/artifact/node.py reads what their auxiliary data says.
#pragma once

#include <string_view>

#include "exported_generated.h"

namespace jaxexp::wire {

/// Whether a custom node is described in its auxiliary data.
inline bool is_library_node(const schema::PyTreeDef& node) {
  return node.custom_name()->string_view() == std::string_view("jaxexp.node");
}

}  // namespace jaxexp::wire

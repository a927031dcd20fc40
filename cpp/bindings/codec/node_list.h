// The kinds of nodes in the node list that pickling a treedef uses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "exported_generated.h"

namespace jaxexp::bindings {

namespace schema = wire::schema;

/// Leaf, None, tuple, namedtuple, list, dict, and all others.
constexpr schema::PyTreeDefKind kinds_of_states[] = {schema::PyTreeDefKind::leaf,  schema::PyTreeDefKind::none,
                                                     schema::PyTreeDefKind::tuple, schema::PyTreeDefKind::custom,
                                                     schema::PyTreeDefKind::list,  schema::PyTreeDefKind::dict,
                                                     schema::PyTreeDefKind::custom};
constexpr std::size_t named_tuple = 3;

inline schema::PyTreeDefKind kind_of(std::size_t state) {
  return kinds_of_states[std::min(state, std::size(kinds_of_states) - 1)];
}

/// Of trees without custom nodes.
inline std::ptrdiff_t state_of_kind(schema::PyTreeDefKind kind) {
  return std::ranges::find(kinds_of_states, kind) - std::begin(kinds_of_states);
}

}  // namespace jaxexp::bindings

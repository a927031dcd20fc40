// Whether the objects of a function may be made when somebody looks at them, and not when it is opened.
#pragma once

#include <cstddef>

#include "wire/artifact/trailer.h"

namespace jaxexp::bindings {

/// What verification leaves open is decoded at once, so that errors come up where an artifact is opened: nodes and
/// effects that this process may not know, shardings and constraints, of which JAX has the last word, and so many
/// shapes that too many may have one hash.
struct Later {
  bool may_wait = true;
  /// Then it may wait only where `Symbolic` knows JAX's layout, and no other function may share its objects.
  bool is_symbolic = false;
};

/// Of a function of an artifact that wire::verify and wire::check have passed. `trailer` may be null; `buffer_size` is
/// that of the artifact. Any thread may ask, without the GIL. Takes time in proportion to what is distinct in it.
Later later(const wire::schema::Exported& exported, const wire::Trailer* trailer, std::size_t buffer_size);

}  // namespace jaxexp::bindings

// Whether a verified artifact makes sense. After this check a decoder can rely on every field that it needs.
#pragma once

#include <cstddef>

#include "exported_generated.h"

namespace jaxexp::wire {

/// Checks what the layout leaves open: required fields are there, enums known, indices in range, vectors that belong
/// together equally long, trees of the right number of leaves and of bounded size, VJPs fitting their primal.
/// Takes time in proportion to the buffer's size. Throws Error.
void check(const schema::Exported& root, std::size_t buffer_size);

}  // namespace jaxexp::wire

// Whether bytes are those of an artifact, and whether it makes sense. After both a decoder can rely on every field that
// it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exported_generated.h"

namespace jaxexp::wire {

/// Returns the root table. Reading any field below it is safe from then on; strings are UTF-8.
/// Takes time in proportion to the buffer's size, whatever is in it. Throws Error.
const schema::Exported& verify(std::span<const std::uint8_t> buffer);

/// The extent of everything that was looked at behind the root offset, except the modules.
struct Extent {
  std::size_t begin, end;
};
const schema::Exported& verify(std::span<const std::uint8_t> buffer, Extent& tables);

/// Of a verified artifact, checks what the layout leaves open: required fields are there, enums known, indices in
/// range, vectors that belong together equally long, trees of the right number of leaves and of bounded size, VJPs
/// fitting their primal. Takes time in proportion to the buffer's size. Throws Error.
void check(const schema::Exported& root, std::size_t buffer_size);

}  // namespace jaxexp::wire

// Whether a buffer can be read at all: every offset, vector and string of the schema's tables lies inside it.
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

}  // namespace jaxexp::wire

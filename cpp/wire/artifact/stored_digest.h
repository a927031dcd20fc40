// Digests as FlatBuffers hold them.
#pragma once

#include "trailer_generated.h"
#include "wire/base/digest.h"
#include "wire/base/unaligned.h"

namespace jaxexp::wire {

inline Digest stored(const schema::Digest& digest) { return load<Digest>(digest.bytes()->Data()); }

inline schema::Digest to_schema(const Digest& digest) {
  return schema::Digest(flatbuffers::span<const std::uint8_t, 16>(digest));
}

}  // namespace jaxexp::wire

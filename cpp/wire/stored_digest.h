// Digests as FlatBuffers hold them.
#pragma once

#include "digest.h"
#include "load.h"
#include "trailer_generated.h"

namespace jaxexp::wire {

inline Digest stored(const schema::Digest& digest) { return load<Digest>(digest.bytes()->Data()); }

}  // namespace jaxexp::wire

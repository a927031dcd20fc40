// Digests as FlatBuffers hold them.
#pragma once

#include "trailer_generated.h"
#include "wire/base/digest.h"
#include "wire/base/unaligned.h"

namespace jaxexp::wire {

inline Digest stored(const schema::Digest& digest) { return load<Digest>(digest.bytes()->Data()); }

}  // namespace jaxexp::wire

// An xla.OpSharding, the only form of shardings in artifacts from before JAX 0.9: checked before XLA sees it.
#pragma once

#include <cstdint>
#include <span>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// Throws Error unless the bytes are a sharding that is replicated, on one device, or tiles `devices` devices.
/// XLA ends the process for some that are none of these.
void check_op_sharding(std::span<const std::uint8_t> proto, std::uint32_t device_count, const Path& path);

}  // namespace jaxexp::wire

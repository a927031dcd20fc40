// An artifact with other notes in its trailer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "wire/artifact/trailer.h"

namespace jaxexp::wire {

/// The artifact with notes as `change` leaves them, which is given its own. Nothing else changes; what follows it in
/// the buffer is left out. Throws Error, also where it has no trailer or notes do not fit it, and TooLarge.
std::vector<std::uint8_t> with_notes(std::span<const std::uint8_t> artifact, const std::function<void(Notes&)>& change);

}  // namespace jaxexp::wire

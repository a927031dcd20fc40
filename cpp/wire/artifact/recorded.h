// An artifact with other cases in its trailer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "wire/artifact/cases.h"

namespace jaxexp::wire {

/// The artifact with these cases in the place of its own. Nothing else changes; what follows it in the buffer is left
/// out. Throws Error, also where it has no trailer or cases do not fit it, and TooLarge.
std::vector<std::uint8_t> with_cases(std::span<const std::uint8_t> artifact, std::optional<Cases> cases);

}  // namespace jaxexp::wire

// Files of other kinds that people pass by mistake.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace jaxexp::wire {

/// What bytes that are not what was expected seem to be, from how they begin; empty where that is unknown.
std::string_view other_format(std::span<const std::uint8_t> bytes);

}  // namespace jaxexp::wire

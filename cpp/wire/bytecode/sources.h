// What a module's locations make a compiler read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// Whether a file, or anything else, has this name here.
bool is_here(std::string_view name);

/// A module in which no location names a file that `is_there`. Nothing where it is this one. Throws Error where the
/// module is damaged.
std::optional<std::vector<std::uint8_t>> without_sources(
    std::span<const std::uint8_t> module, const Path& where,
    const std::function<bool(std::string_view)>& is_there = is_here);

}  // namespace jaxexp::wire

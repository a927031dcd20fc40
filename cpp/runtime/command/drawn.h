// Random numbers as every release draws them: docs/formats/cases.md defines them bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "jaxexp/artifact.h"

namespace jaxexp::command {

/// So many bytes of numbers of a dtype; a random key is several numbers of uint32.
std::vector<std::uint8_t> draw(const Case::Drawn& drawn, std::string_view dtype, std::size_t bytes);

}  // namespace jaxexp::command

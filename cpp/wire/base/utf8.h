// Whether a text is UTF-8 as Python's strict decoder has it: shortest forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstdint>
#include <span>

#include "wire/base/unaligned.h"

namespace jaxexp::wire {

/// What `is_utf8` does for texts that are not short ASCII.
bool is_long_utf8(std::span<const std::uint8_t> text);

/// Most strings are a few ASCII characters: this looks at each of them without a loop.
inline bool is_utf8(std::span<const std::uint8_t> text) {
  const std::uint8_t* const p = text.data();
  const std::size_t size = text.size();
  if (size > 8) return is_long_utf8(text);
  const bool is_ascii = size >= 4 ? ((load<std::uint32_t>(p) | load<std::uint32_t>(p + size - 4)) & 0x80808080u) == 0
                                  : size == 0 || (p[0] | p[size / 2] | p[size - 1]) < 0x80;
  return is_ascii || is_long_utf8(text);
}

}  // namespace jaxexp::wire

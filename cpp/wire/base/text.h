// Whether a text is UTF-8 as Python's strict decoder has it: shortest forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

inline constexpr std::string_view hexadecimal_digits = "0123456789abcdef";

inline std::string hexadecimal(std::span<const std::uint8_t> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t byte : bytes) (text += hexadecimal_digits[byte >> 4]) += hexadecimal_digits[byte & 15];
  return text;
}

inline std::string hexadecimal(std::string_view bytes) {
  return hexadecimal(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}

/// The bytes up to the first character that is no digit.
inline std::string from_hexadecimal(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const auto high = hexadecimal_digits.find(text[i]), low = hexadecimal_digits.find(text[i + 1]);
    if (high == text.npos || low == text.npos) break;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

/// The first eight of so many texts, each of which `text` returns by its number.
template <class Text>
std::string listed(std::size_t count, const Text& text) {
  constexpr std::size_t most = 8;
  std::string all;
  for (std::size_t i = 0; i < std::min(count, most); ++i) (all += i > 0 ? ", " : "") += text(i);
  if (count > most) all += ", ...";
  return count == 0 ? "none" : all;
}

}  // namespace jaxexp::wire

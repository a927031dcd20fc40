// Bytes as text, two digits each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace jaxexp::wire {

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

}  // namespace jaxexp::wire

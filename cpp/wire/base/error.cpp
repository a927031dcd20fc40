#include "wire/base/error.h"

#include <algorithm>
#include <iterator>

#include "wire/base/text.h"

namespace jaxexp::wire {

// Of Unicode's characters, those are printable that Python's str.isprintable() says are.

namespace {

struct Range {
  std::uint32_t first, last;
};

/// Controls, separators except for the space, characters that only change how others look or run, and private ones.
/// Between the parts of a range no character is assigned.
constexpr Range unprintable[] = {
    {0, 0x1F},          {0x7F, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
    {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},     {0x1680, 0x1680},
    {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},   {0x3000, 0x3000},
    {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
    {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0001, 0xE007F}, {0xF0000, 0x10FFFF},
};

bool is_printable(std::uint32_t character) {
  const auto* const range = std::ranges::lower_bound(unprintable, character, {}, &Range::last);
  return range == std::end(unprintable) || character < range->first;
}

std::string escape(char prefix, std::uint32_t number, int digits) {
  std::string text{'\\', prefix};
  while (digits-- > 0) text += hexadecimal_digits[number >> 4 * digits & 15];
  return text;
}

std::string escape(std::uint32_t character) {
  switch (character) {
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: break;
  }
  return character < 0x100     ? escape('x', character, 2)
         : character < 0x10000 ? escape('u', character, 4)
                               : escape('U', character, 8);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<std::uint8_t>(text[0]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view character = text.substr(0, size);
    if (character.size() < size || !is_utf8({reinterpret_cast<const std::uint8_t*>(character.data()), size})) {
      shown += escape('x', lead, 2);
      text.remove_prefix(1);
      continue;
    }
    std::uint32_t number = size == 1 ? lead : lead & (0x7F >> size);
    for (const char more : character.substr(1)) number = number << 6 | (static_cast<std::uint8_t>(more) & 0x3F);
    if (is_printable(number))
      shown += character;
    else
      shown += escape(number);
    text.remove_prefix(size);
  }
  return shown;
}

}  // namespace jaxexp::wire

// Numbers are hexadecimal and have a constant number of digits, so that every end is equally long.
#include "wire/archive/end.h"

#include <algorithm>
#include <array>

#include "wire/base/hexadecimal.h"

namespace jaxexp::wire {
namespace {

/// A comment without its numbers, which a '#' stands for, a digit each.
constexpr std::string_view form =
    "jaxexp archive 1, index ################ ########, root ######## ########, "
    "xxh3 ################################";
static_assert(ArchiveEnd::magic_at + form.size() == ArchiveEnd::size);
static_assert(form.starts_with(ArchiveEnd::magic));

/// What is constant in front of the comment: the signature, and the comment's size.
constexpr std::array<std::pair<std::size_t, char>, 6> constants = {
    {{0, 'P'}, {1, 'K'}, {2, '\5'}, {3, '\6'}, {20, static_cast<char>(form.size())}, {21, '\0'}}};

char at(std::span<const std::uint8_t> bytes, std::size_t i) { return static_cast<char>(bytes[i]); }

}  // namespace

std::string ArchiveEnd::comment() const {
  std::string text;
  std::string hex;
  const auto add = [&](std::uint64_t number, int count) {
    for (int shift = 4 * (count - 1); shift >= 0; shift -= 4) hex += hexadecimal_digits[number >> shift & 15];
  };
  add(index_position, 16);
  add(index_size, 8);
  add(root_position, 8);
  add(root_size, 8);
  for (const std::uint8_t byte : root_digest) add(byte, 2);
  auto digit = hex.begin();
  for (const char c : form) text += c == '#' ? *digit++ : c;
  return text;
}

std::optional<ArchiveEnd> ArchiveEnd::read(std::span<const std::uint8_t> last) {
  if (last.size() != size) return std::nullopt;
  for (const auto& [i, c] : constants)
    if (at(last, i) != c) return std::nullopt;
  std::string values;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const char c = at(last, magic_at + i);
    if (form[i] != '#') {
      if (c != form[i]) return std::nullopt;
      continue;
    }
    const std::size_t value = hexadecimal_digits.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    values += static_cast<char>(value);
  }
  auto value = values.begin();
  const auto number = [&](int count) {
    std::uint64_t number = 0;
    for (int i = 0; i < count; ++i) number = number << 4 | static_cast<std::uint64_t>(*value++);
    return number;
  };
  ArchiveEnd end{};
  end.index_position = number(16);
  end.index_size = static_cast<std::uint32_t>(number(8));
  end.root_position = static_cast<std::uint32_t>(number(8));
  end.root_size = static_cast<std::uint32_t>(number(8));
  for (std::uint8_t& byte : end.root_digest) byte = static_cast<std::uint8_t>(number(2));
  return end;
}

bool ArchiveEnd::is_resembled_by(std::span<const std::uint8_t> last) {
  if (last.size() != size) return false;
  std::size_t same = 0, all = 0;
  for (const auto& [i, c] : constants) {
    all += c != '\0';  // zeros are everywhere
    same += c != '\0' && at(last, i) == c;
  }
  for (std::size_t i = 0; i < form.size(); ++i) {
    all += form[i] != '#';
    same += form[i] != '#' && at(last, magic_at + i) == form[i];
  }
  return 2 * same > all;
}

}  // namespace jaxexp::wire

// The outermost level of a module in MLIR bytecode.
#include "wire/bytecode/sections.h"

#include <algorithm>
#include <string>

#include "wire/base/utf8.h"

namespace jaxexp::wire {
namespace {

constexpr std::array<std::uint8_t, 4> first_word = {'M', 'L', 0xEF, 'R'};

/// What stands behind the first word.
Cursor behind_first_word(std::span<const std::uint8_t> module, const Path& where) {
  Cursor cursor(module, where);
  for (const std::uint8_t byte : first_word)
    if (cursor.at_end() || cursor.byte() != byte) cursor.refuse("another first word");
  return cursor;
}

std::string_view text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool begins_like_bytecode(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= first_word.size() && std::ranges::equal(first_word, bytes.first(first_word.size()));
}

Sections::Sections(std::span<const std::uint8_t> module, const Path& where)
    : rest_(behind_first_word(module, where)),
      version_(rest_.number()),
      producer_(text(rest_.text())),
      head_size_(rest_.place()) {
  // MLIR's bindings end the process where they quote one that is not.
  if (!is_utf8({reinterpret_cast<const std::uint8_t*>(producer_.data()), producer_.size()}))
    rest_.refuse("a producer that is not UTF-8");
}

void Sections::find() {
  while (!rest_.at_end()) {
    const auto [kind, section] = rest_.section();
    const bool known = kind < section_kinds;
    if (!known && version_ > newest_bytecode) continue;
    if (!known || sections_[kind]) rest_.refuse("a section of kind " + std::to_string(kind));
    sections_[kind] = section;
  }
}

const Cursor& Sections::needed(Section kind) const {
  const auto& section = (*this)[kind];
  if (!section) rest_.refuse("no section of kind " + std::to_string(static_cast<unsigned>(kind)));
  return *section;
}

}  // namespace jaxexp::wire

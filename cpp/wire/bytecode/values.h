// The values that operations and regions take and give, against patterns of letters.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "wire/bytecode/tables.h"

namespace jaxexp::wire {

/// One operation with its regions. A letter stands for a value: a tensor (x), a predicate, which is one truth value
/// (i), a token (k), a tuple (p), a future (f), any of these or a buffer (v). Behind a letter, "*" says that there is
/// any number of them. Behind several letters of an operation, "+" says that there are equally many of each, and at
/// least one; "#" the same, but perhaps none. Where these may be any values, they are of one kind each time: what a
/// loop begins with, is given and returns.
class Values {
 public:
  explicit Values(const AttributesAndTypes& tables) : tables_(&tables) {}

  /// Whether a pattern has values of these types before its ">", and of those behind it.
  bool fit(std::string_view pattern, std::span<const std::uint32_t> taken, std::span<const std::uint32_t> given) {
    const std::size_t middle = pattern.find('>');
    return fit(pattern.substr(0, middle), taken) && fit(pattern.substr(middle + 1), given);
  }

 private:
  bool fit(std::string_view side, std::span<const std::uint32_t> types);
  bool fits(char letter, std::uint32_t type) const;

  const AttributesAndTypes* tables_;
  std::optional<std::size_t> count_;  // what "+" and "#" stand for
  std::vector<char> kinds_;           // of the values of the first group of any
};

}  // namespace jaxexp::wire

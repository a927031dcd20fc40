// Lists in messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace jaxexp::wire {

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

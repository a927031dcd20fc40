// Comparing stretches, a word after the other without branches, which compilers turn into vector instructions.
#include "wire/exported/stretches.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/base/unaligned.h"

namespace jaxexp::wire {

const Stretches::Stretch* Stretches::find(std::size_t position, std::uint8_t kind) {
  if (stretches_.empty() || position + word * least_words > size_) return nullptr;
  if (const std::uint32_t one = expected(); one != none && repeats(stretches_[one], position, kind))
    return came(one), &stretches_[one];
  std::uint32_t one = newest_like(position);
  for (std::size_t tries = 0; one != none && tries < most_tries; ++tries, one = stretches_[one].next)
    if (repeats(stretches_[one], position, kind)) return came(one), &stretches_[one];
  return nullptr;
}

std::uint32_t& Stretches::newest_like(std::size_t position) {
  constexpr std::uint64_t factor = 0x9E3779B97F4A7C15u;
  const std::uint8_t* const beginning = data_ + position + 3 * word;
  const std::uint64_t hash =
      (load<std::uint64_t>(beginning) * factor ^ load<std::uint64_t>(beginning + 2 * word)) * factor;
  return newest_[(hash >> 32) % slots];
}

void Stretches::came(std::uint32_t index) {
  expected() = index;
  before_ = std::exchange(last_, index);
}

bool Stretches::repeats(const Stretch& stretch, std::size_t position, std::uint8_t kind) const {
  if (marks_[stretch.first] != kind || position + word * stretch.words > size_) return false;
  const std::uint8_t *const here = data_ + position, *const there = data_ + stretch.position;
  const std::uint32_t* const moving = moving_.data() + stretch.first;
  const auto distance = static_cast<std::uint32_t>(position - stretch.position);
  // A table has its distance from its vtable, which stays where it is.
  std::uint32_t differing = 0;
  for (std::size_t i = 0; i < stretch.words; ++i)
    differing |=
        load<std::uint32_t>(here + word * i) ^ (load<std::uint32_t>(there + word * i) + (moving[i] & distance));
  return differing == 0;
}

bool Stretches::visit(const Stretch& stretch, std::size_t position, Visits& visits) const {
  const auto marks = visits.marks(position, stretch.words);
  if (marks.empty()) return false;
  std::uint8_t visited = 0;
  for (const std::uint8_t mark : marks) visited |= mark;
  if (visited != 0) return false;
  std::memcpy(marks.data(), marks_.data() + stretch.first, marks.size());
  return true;
}

std::uint32_t Stretches::keep(std::size_t position, std::size_t size, const Costs& costs,
                              std::span<const std::size_t> tables, std::size_t first_visits, Visits& visits) {
  const std::size_t words = (size + word - 1) / word;
  if (words < least_words || words > most_words || position + word * words > size_ || stretches_.size() == most)
    return 0;
  const auto marks = visits.marks(position, words);
  const auto visited = [](std::uint8_t mark) { return mark != 0; };
  if (marks.empty() || static_cast<std::size_t>(std::ranges::count_if(marks, visited)) != first_visits) return 0;
  const std::size_t first = moving_.size();
  moving_.resize(first + words);
  for (const std::size_t table : tables) moving_[first + (table - position) / word] = ~std::uint32_t{0};
  marks_.insert(marks_.end(), marks.begin(), marks.end());
  const auto index = static_cast<std::uint32_t>(stretches_.size());
  if (stretches_.empty()) newest_.resize(slots, none), expected_.resize(slots, none);
  std::uint32_t& newest = newest_like(position);
  stretches_.push_back({position, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(words),
                        static_cast<std::uint32_t>(first), costs, newest});
  newest = index;
  came(index);
  return index + 1;
}

}  // namespace jaxexp::wire

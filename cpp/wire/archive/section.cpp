// A head is a ZIP header and 64 bytes: a mark, three facts, and a digest of these.
#include "wire/archive/section.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "wire/archive/end.h"
#include "wire/archive/zip_file.h"
#include "wire/base/unaligned.h"

namespace jaxexp::wire {
namespace {

constexpr std::array<std::uint8_t, 8> section_mark = {'j', 'x', 's', 'e', 'c', 't', 0, 1};
constexpr std::size_t crc32_at = 14;  // in the ZIP header
constexpr std::size_t mark_at = 0, position_at = 8, end_at = 16, last_digest_at = 24, reserved_at = 40, digest_at = 48,
                      facts_size = 64;

/// The ZIP header in front of the facts: its checksum depends on them, and its size on the position.
std::string zip_header(std::uint64_t position, std::uint32_t crc32) {
  return zip_local_header(section_name, facts_size, crc32, position);
}

void put(std::array<std::uint8_t, facts_size>& facts, std::size_t at, std::uint64_t number) {
  for (std::size_t i = 0; i < 8; ++i) facts[at + i] = static_cast<std::uint8_t>(number >> 8 * i);
}

std::uint64_t get(std::span<const std::uint8_t> facts, std::size_t at) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) number |= std::uint64_t{facts[at + i]} << 8 * i;
  return number;
}

bool equal(std::span<const std::uint8_t> bytes, std::string_view text) {
  return std::ranges::equal(bytes, text, {}, {}, [](char c) { return static_cast<std::uint8_t>(c); });
}

/// Whether bytes are a head, of whatever section at this position: more than half of what all of these have in common
/// is there.
bool resembles(std::span<const std::uint8_t> first, const std::string& head) {
  const std::size_t header = head.size() - facts_size;
  std::size_t same = 0, all = 0;
  for (std::size_t i = 0; i < header + end_at; ++i) {
    if ((i >= crc32_at && i < crc32_at + 4) || head[i] == '\0') continue;  // zeros are everywhere
    ++all;
    same += i < first.size() && first[i] == static_cast<std::uint8_t>(head[i]);
  }
  return 2 * same > all;
}

/// Whether bytes are the first ones of a head, of whatever section at this position, and the rest of it is not there:
/// that section may have been completed. Then its checksum, its end and its digests are others.
bool is_cut(std::span<const std::uint8_t> first, const std::string& head) {
  const std::size_t facts = head.size() - facts_size;
  const auto is_free = [facts](std::size_t i) {
    return (i >= crc32_at && i < crc32_at + 4) || (i >= facts + end_at && i < facts + reserved_at) ||
           i >= facts + digest_at;
  };
  for (std::size_t i = 0; i < first.size(); ++i)
    if (!is_free(i) && first[i] != static_cast<std::uint8_t>(head[i])) return false;
  return first.size() < head.size();
}

}  // namespace

std::string Section::head() const {
  std::array<std::uint8_t, facts_size> facts{};
  std::ranges::copy(section_mark, facts.begin() + mark_at);
  put(facts, position_at, position);
  put(facts, end_at, end);
  std::ranges::copy(last_digest, facts.begin() + last_digest_at);
  put(facts, reserved_at, 0);
  std::ranges::copy(digest(std::span(facts).first(digest_at)), facts.begin() + digest_at);
  return zip_header(position, crc32(facts)) + std::string(facts.begin(), facts.end());
}

Section::Found Section::read(std::span<const std::uint8_t> first, std::uint64_t position) {
  Section section{position};
  const std::string unfinished = section.head();
  const auto head = first.first(std::min(first.size(), unfinished.size()));
  if (equal(head, std::string_view(unfinished).substr(0, head.size())) || is_cut(head, unfinished))
    return {Kind::unfinished, section};
  if (head.size() == unfinished.size()) {
    const auto facts = head.last(facts_size);
    section.end = get(facts, end_at);
    section.last_digest = load<Digest>(facts.data() + last_digest_at);
    if (equal(head, section.head())) return {Kind::complete, section};
  }
  return {resembles(head, unfinished) ? Kind::damaged : Kind::something_else, {position}};
}

bool Section::is_half_written(std::span<const std::uint8_t> first, const Section& complete) {
  const std::string before = Section{complete.position}.head(), after = complete.head();
  if (first.size() < before.size()) return false;
  for (std::size_t i = 0; i < before.size(); ++i)
    if (first[i] != static_cast<std::uint8_t>(before[i]) && first[i] != static_cast<std::uint8_t>(after[i]))
      return false;
  return true;
}

}  // namespace jaxexp::wire

// Numbers are hexadecimal and have a constant number of digits, so that every end is equally long.
#include "wire/archive/end.h"

#include <algorithm>
#include <array>

#include "wire/archive/zip_file.h"
#include "wire/base/error.h"
#include "wire/base/text.h"
#include "wire/base/unaligned.h"

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

// A head is a ZIP header and 64 bytes: a mark, three facts, and a digest of these.

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

// Each step begins where the one before it proved that something of the archive's own begins.

namespace {

using Rest = FoundEnd::Rest;
using Bytes = std::span<const std::uint8_t>;

constexpr const char* advice = "; get another copy of the archive";

std::uint16_t u16(Bytes bytes, std::size_t at) { return static_cast<std::uint16_t>(bytes[at] | bytes[at + 1] << 8); }
std::uint32_t u32(Bytes bytes, std::size_t at) { return u16(bytes, at) | std::uint32_t{u16(bytes, at + 2)} << 16; }
std::uint64_t u64(Bytes bytes, std::size_t at) { return u32(bytes, at) | std::uint64_t{u32(bytes, at + 4)} << 32; }

bool begins_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin(),
                    [](char c, std::uint8_t byte) { return static_cast<std::uint8_t>(c) == byte; });
}

class Search {
 public:
  Search(std::uint64_t size, const ReadAt& read, bool may_walk) : size_(size), read_(read), may_walk_(may_walk) {}

  FoundEnd run() {
    while (position_ < size_ && next()) {
    }
    if (end_ == 0) refuse();
    const Bytes last = read(end_ - ArchiveEnd::size, ArchiveEnd::size);
    const auto said = ArchiveEnd::read(last);
    if (!said || (last_digest_ && digest(last) != *last_digest_))
      throw Error({}, "an archive's end", std::string("a damaged one") + advice);
    const std::uint64_t members_end = end_ - ArchiveEnd::size;
    if (said->index_position > members_end || said->index_size > members_end - said->index_position ||
        said->root_position > said->index_size || said->root_size > said->index_size - said->root_position)
      throw Error(
          {}, "an index of " + std::to_string(said->index_size) + " bytes at " + std::to_string(said->index_position),
          "an archive of " + std::to_string(end_) + " bytes" + advice);
    return {end_, *said, end_ == size_ ? Rest::nothing : rest_, section_};
  }

 private:
  Bytes read(std::uint64_t position, std::size_t most) {
    return read_(position, static_cast<std::size_t>(std::min<std::uint64_t>(most, size_ - position)));
  }

  /// Passes the section at the position. Returns false if it is not complete.
  bool next() {
    const Bytes first = read(position_, Section::most_head);
    const auto [kind, section] = Section::read(first, position_);
    switch (kind) {
      case Section::Kind::complete:
        if (section.end < position_ + Section::most_head + ArchiveEnd::size || section.end > size_)
          return cut(section.end);
        last_digest_ = section.last_digest;
        return pass(section.end);
      case Section::Kind::unfinished: rest_ = Rest::unfinished; return false;
      case Section::Kind::damaged:
        if (is_half_written()) return rest_ = Rest::unfinished, false;
        throw Error({nullptr, "section"}, "the head of a section at byte " + std::to_string(position_),
                    std::string("a damaged one") + advice);
      case Section::Kind::something_else: break;
    }
    return may_walk_ ? walk() : believe();
  }

  bool pass(std::uint64_t end) { return section_ = position_, position_ = end_ = end, true; }

  /// Of a section whose end the file does not have.
  bool cut(std::uint64_t end) {
    if (end_ == 0)
      throw Error({}, "an archive of " + std::to_string(end) + " bytes, as its first section says",
                  std::to_string(size_) + ": the file was cut or damaged" + advice);
    return rest_ = Rest::unfinished, false;
  }

  /// Whether the head at the position was being written when somebody was interrupted. There is an archive in front of
  /// it then; and behind it the end of another one, or none.
  bool is_half_written() {
    if (position_ == 0) return false;
    if (size_ - position_ < Section::most_head + ArchiveEnd::size) return true;
    const Bytes bytes = read(size_ - ArchiveEnd::size, ArchiveEnd::size);
    if (!ArchiveEnd::read(bytes)) return true;
    const Section complete{position_, size_, digest(bytes)};
    return Section::is_half_written(read(position_, Section::most_head), complete);
  }

  /// The end of a file that begins like an archive of an earlier version.
  bool believe() {
    if (position_ != 0 || size_ < ArchiveEnd::size || !begins_with(read(0, 4), "PK\3\4")) return false;
    if (!ArchiveEnd::read(read(size_ - ArchiveEnd::size, ArchiveEnd::size))) return false;
    return pass(size_);
  }

  /// Passes members, their directory and an end. Returns false if they are not complete.
  bool walk() {
    std::uint64_t at = position_;
    for (bool in_directory = false; at < size_;) {
      const Bytes record = read(at, most_record);
      std::uint64_t length = 0;
      if (const auto member = member_at(record, at); member && !in_directory) {
        length = *member;
      } else if (begins_with(record, "PK\5\6") && record.size() >= ArchiveEnd::size) {
        length = 22 + std::uint64_t{u16(record, 20)};
        if (!ArchiveEnd::read(record.first(ArchiveEnd::size))) break;
        last_digest_.reset();
        return pass(at + length);
      } else {
        length = directory_record(record);
        if (length == 0) break;
        in_directory = true;
      }
      if (length > size_ - at) break;
      at += length;
      rest_ = Rest::unfinished;  // what was passed has the form that an append gives it
    }
    if (at == position_) rest_ = is_begun(read(at, most_record), at) ? Rest::unfinished : Rest::unknown;
    return false;
  }

  /// How many bytes a member has, its header included; nothing where there is none as jaxexp writes it.
  static std::optional<std::uint64_t> member_at(Bytes record, std::uint64_t position) {
    if (record.size() < 30 || !begins_with(record, "PK\3\4")) return std::nullopt;
    const std::size_t name = u16(record, 26), size = u32(record, 18);
    if (record.size() < 30 + name) return std::nullopt;
    const std::string header = zip_local_header({reinterpret_cast<const char*>(record.data()) + 30, name},
                                                u32(record, 18), u32(record, 14), position);
    if (!begins_with(record, header)) return std::nullopt;
    return header.size() + std::uint64_t{size};
  }

  /// Whether a member begins that the file has only the first bytes of.
  static bool is_begun(Bytes record, std::uint64_t position) {
    if (record.size() < 30) return begins_with(record, "PK\3\4");
    if (member_at(record, position)) return true;
    std::string name(record.begin() + 30, record.end());
    name.resize(u16(record, 26));  // the size of the header depends on that of the name
    const std::string header = zip_local_header(name, u32(record, 18), u32(record, 14), position);
    return record.size() < header.size() && begins_with(record, std::string_view(header).substr(0, record.size()));
  }

  static std::uint64_t directory_record(Bytes record) {
    if (begins_with(record, "PK\1\2") && record.size() >= 46)
      return 46 + std::uint64_t{u16(record, 28)} + u16(record, 30) + u16(record, 32);
    if (begins_with(record, "PK\6\6") && record.size() >= 56 && u64(record, 4) == 44) return 56;
    if (begins_with(record, "PK\6\7") && record.size() >= 20) return 20;
    return 0;
  }

  [[noreturn]] void refuse() {
    const bool is_zip = begins_with(read(0, 4), "PK\3\4") || begins_with(read(0, 4), "PK\5\6");
    if (rest_ == Rest::unfinished)
      throw Error({}, "an archive's end", std::string("no end: the file was cut or damaged") + advice);
    if (is_zip && size_ >= ArchiveEnd::size &&
        ArchiveEnd::is_resembled_by(read(size_ - ArchiveEnd::size, ArchiveEnd::size)))
      throw Error({}, "an archive's end", std::string("a damaged one") + advice);
    throw Error({}, "an archive of artifacts, with an index that its end points to",
                is_zip ? "a ZIP file without one: `jaxexp pack` makes an archive from its members" : "something else");
  }

  /// Enough for any record: a fixed part, a name, and padding.
  static constexpr std::size_t most_record = 2048;

  const std::uint64_t size_;
  const ReadAt& read_;
  const bool may_walk_;
  std::uint64_t position_ = 0;         // where the next section begins
  std::uint64_t section_ = 0;          // where the last complete one begins
  std::uint64_t end_ = 0;              // of that one
  std::optional<Digest> last_digest_;  // of that one's last bytes
  Rest rest_ = Rest::unknown;
};

}  // namespace

FoundEnd find_end(std::uint64_t size, const ReadAt& read, bool may_walk) { return Search(size, read, may_walk).run(); }

}  // namespace jaxexp::wire

// Fuzz target: where the last complete archive in a file ends. Bytes are a file as they are, and behind archives that
// are complete: of these none is lost, whatever follows, and nothing inside of a member counts.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "archive.h"
#include "errors.h"
#include "wire/archive/end.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

void add(Bytes& bytes, const std::string& text) { bytes.insert(bytes.end(), text.begin(), text.end()); }

/// A section that is complete, with a member of this content.
void add_section(Bytes& file, std::span<const std::uint8_t> member) {
  const std::uint64_t position = file.size();
  add(file, wire::Section{position}.head());
  const auto size = static_cast<std::uint32_t>(member.size());
  add(file, wire::zip_local_header("m", size, 0, file.size()));
  file.insert(file.end(), member.begin(), member.end());
  const wire::ArchiveEnd end{file.size(), 0, 0, 0, {}};
  std::vector<wire::ZipMember> members{{"m", size, 0, position}};
  add(file, wire::zip_end(members, file.size(), end.comment()));
  const auto last = std::span(file).last(wire::ArchiveEnd::size);
  const std::string head = wire::Section{position, file.size(), wire::digest(last)}.head();
  std::ranges::transform(head, file.begin() + static_cast<std::ptrdiff_t>(position),
                         [](char c) { return static_cast<std::uint8_t>(c); });
}

/// The end in the first bytes of a file, found by ranges that are held apart; nothing where there is none.
std::optional<wire::FoundEnd> find(std::span<const std::uint8_t> file, bool may_walk) {
  Bytes held;
  std::size_t reads = 0;
  const auto read = [&](std::uint64_t position, std::size_t size) {
    tests::require(position <= file.size() && size <= file.size() - position, "ranges are inside the file");
    ++reads;
    const auto part = file.subspan(position, size);
    held = Bytes(part.begin(), part.end());
    held.shrink_to_fit();
    return std::span<const std::uint8_t>(held);
  };
  try {
    const auto found = wire::find_end(file.size(), read, may_walk);
    tests::require(found.end <= file.size() && found.end >= wire::ArchiveEnd::size, "it is inside the file");
    tests::require(found.said.index_position <= found.end, "its index, too");
    tests::require(
        wire::ArchiveEnd::read(file.subspan(found.end - wire::ArchiveEnd::size, wire::ArchiveEnd::size)).has_value(),
        "an end is there");
    tests::require((found.rest == wire::FoundEnd::Rest::nothing) == (found.end == file.size()), "what follows is seen");
    tests::require(reads <= 16 + file.size() / 16, "ranges are as many as records");
    return found;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  for (const bool may_walk : {false, true}) find(bytes, may_walk);
  Bytes sealed(bytes.begin(), bytes.end());
  tests::seal_sections(sealed);
  const auto by_heads = find(sealed, false), by_walking = find(sealed, true);
  tests::require(!by_heads || by_walking, "whoever may walk finds no less");

  // As a member of a section that is not complete, wherever it is cut, and as one of a section that is.
  Bytes file;
  add_section(file, bytes.first(size / 2));
  const std::size_t first = file.size();
  tests::require(find(file, true)->end == first, "a complete section is an archive");
  add_section(file, bytes);
  Bytes unfinished = file;
  const std::string head = wire::Section{first}.head();
  std::ranges::transform(head, unfinished.begin() + static_cast<std::ptrdiff_t>(first),
                         [](char c) { return static_cast<std::uint8_t>(c); });
  for (const Bytes* whole : {&file, &unfinished})
    for (const std::size_t cut : {first + head.size(), file.size() - size / 3 - 1, file.size() - 1}) {
      const auto found = find(std::span(*whole).first(std::clamp(cut, first, file.size() - 1)), true);
      tests::require(found && found->end == first, "nothing inside of a member is an archive");
    }
  tests::require(find(file, false)->end == file.size() && find(unfinished, true)->end == first,
                 "the head says whether it is complete");

  // Behind an archive: only a head at this place leads further.
  Bytes behind(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(first));
  behind.insert(behind.end(), bytes.begin(), bytes.end());
  if (const auto found = find(behind, false))
    tests::require(found->end >= first, "an archive that was complete is not lost");
  return 0;
}

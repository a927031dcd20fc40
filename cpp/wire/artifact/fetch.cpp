// Where the parts of an artifact are, before anything of it was verified.
#include "wire/artifact/fetch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "wire/artifact/layout.h"
#include "wire/base/unaligned.h"

namespace jaxexp::wire {
namespace {

constexpr std::size_t length_size = sizeof(flatbuffers::uoffset_t), first_size = length_size + head_size;
// In a footer; schema/trailer.fbs has the table.
constexpr std::size_t metadata_size_at = 16, content_size_at = 20;

bool is_marked(Opened::Bytes buffer, bool image) {
  const auto& wanted = image ? image_mark : mark;
  return std::equal(wanted.begin(), wanted.end(), buffer.begin() + length_size);
}

}  // namespace

bool fetch_all_but_modules(const FileBytes& file, Opened::Bytes buffer, bool image) {
  const auto all = [&](bool is_digested) { return file.fetch(buffer, is_digested), false; };
  if (buffer.size() < first_size) return all(false);
  file.fetch(buffer.first(first_size));
  const bool marked = is_marked(buffer, image);
  if (buffer.size() < worth_parts || !marked) return all(marked);
  const std::size_t end = load<std::uint32_t>(buffer.data() + length_size + mark.size());
  constexpr std::size_t most_footer = TrailerWriter::footer_size + sizeof(Digest);
  if (end > buffer.size() || end < first_size + most_footer) return all(true);
  file.fetch(buffer.subspan(end - most_footer, most_footer));
  const std::uint8_t* const footer = buffer.data() + end - TrailerWriter::footer_size;
  const std::size_t metadata_size = load<std::uint32_t>(footer + metadata_size_at);
  const std::size_t content_size = load<std::uint32_t>(footer + content_size_at);
  if (metadata_size > end || content_size > end - most_footer) return all(true);
  const std::size_t content_start = end - most_footer - content_size;  // or a digest behind it
  file.fetch(buffer.first(std::min(buffer.size(), metadata_size + length_size)));
  file.fetch(buffer.subspan(content_start, end - content_start));
  std::optional<Trailer> trailer;
  try {
    trailer = Trailer::read(buffer, image);
  } catch (const Error&) {
    return false;  // opening it finds the same: nothing else was looked at
  }
  if (!trailer) return all(false);
  std::size_t position = trailer->metadata().size();
  for (const schema::FunctionNotes* notes : *trailer->content().functions()) {
    const std::size_t size = image ? 0 : notes->module_size();
    if (position > end || size > end - position) return all(true);
    file.fetch(buffer.subspan(position, std::min(length_size, end - position)));
    position += length_size + size;
    if (position > end) return all(true);
    file.fetch(buffer.subspan(position, std::min(padding(size), end - position)));
    position += padding(size);
  }
  return true;
}

bool is_in_front_of_modules(const Opened& opened) {
  return opened.trailer() && opened.tables().end <= opened.trailer()->metadata().size();
}

}  // namespace jaxexp::wire

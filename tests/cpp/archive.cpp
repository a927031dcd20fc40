// Sections as schema/archive.fbs and wire/archive/end.h have them.
#include "archive.h"

#include <cstring>
#include <span>

#include "wire/archive/end.h"
#include "wire/archive/zip_file.h"
#include "wire/artifact/opened.h"
#include "wire/base/digest.h"
#include "wire/exported/values.h"

namespace jaxexp::tests {
namespace {

void add(Archive::Bytes& bytes, const std::string& text) { bytes.insert(bytes.end(), text.begin(), text.end()); }

/// Of a section that ends there; where that is nowhere, of one that is not complete.
void put_head(Archive::Bytes& file, std::size_t position, std::size_t end) {
  wire::Section section{position};
  if (end != 0) section = {position, end, wire::digest(std::span(file).first(end).last(wire::ArchiveEnd::size))};
  const std::string head = section.head();
  std::memcpy(file.data() + position, head.data(), head.size());
}

}  // namespace

wire::Member Archive::member(const Bytes& artifact, std::size_t header) const {
  const wire::Opened opened(artifact);
  wire::Member member;
  member.summary.fun_name = opened.root().function_name()->str();
  member.summary.writer = "test";
  member.summary.platforms = "cpu";
  member.summary.nr_devices = 1;
  member.digest = wire::digest(artifact);
  member.size = member.place.size = static_cast<std::uint32_t>(artifact.size());
  member.place.header = static_cast<std::uint16_t>(header);
  member.place.position = bytes_.size() + header;
  for (const auto& [order, function] : wire::Chain(opened.root())) {
    const auto module = opened.module(function, order);
    const auto inside = static_cast<std::uint64_t>(module.data() - artifact.data());
    member.modules.push_back(
        {member.place.position + inside, static_cast<std::uint32_t>(module.size()), wire::digest(module)});
  }
  return member;
}

void Archive::append(const std::vector<std::pair<std::string, Bytes>>& artifacts, bool in_section) {
  const std::uint64_t start = bytes_.size();
  if (in_section) add(bytes_, wire::Section{start}.head());
  for (const auto& [name, artifact] : artifacts) {
    const auto size = static_cast<std::uint32_t>(artifact.size());
    const std::string header = wire::zip_local_header(name, size, 0, bytes_.size());
    records_.put(name, member(artifact, header.size()));
    add(bytes_, header);
    bytes_.insert(bytes_.end(), artifact.begin(), artifact.end());
  }
  const std::uint64_t position = bytes_.size();
  const std::size_t header_size = wire::zip_local_header(wire::index_name, 0, 0, position).size();
  const wire::IndexBytes index = records_.write("test", position + header_size);
  const auto size = static_cast<std::uint32_t>(index.bytes.size());
  add(bytes_, wire::zip_local_header(wire::index_name, size, 0, position));
  const wire::ArchiveEnd end{bytes_.size(), size, static_cast<std::uint32_t>(index.root_position),
                             static_cast<std::uint32_t>(index.root_size), index.root_digest};
  bytes_.insert(bytes_.end(), index.bytes.begin(), index.bytes.end());
  const std::size_t behind = bytes_.size();
  records_.write_directory(
      {std::string(wire::index_name), size, 0, position}, behind, end.comment(), start,
      [&](std::span<const std::uint8_t> part) { bytes_.insert(bytes_.end(), part.begin(), part.end()); });
  if (in_section) put_head(bytes_, start, bytes_.size());
}

wire::FoundEnd end_of(const wire::FileBytes& file) {
  Archive::Bytes held;
  const auto read = [&](std::uint64_t position, std::size_t size) {
    held.resize(size);
    file.read(position, held);
    return std::span<const std::uint8_t>(held);
  };
  return wire::find_end(file.bytes().size(), read, true);
}

wire::ArchiveIndex index_of(const wire::FileBytes& file, const wire::FoundEnd& found) {
  const auto& said = found.said;
  const auto part = file.bytes().subspan(said.index_position, said.index_size);
  const auto root = part.subspan(said.root_position, said.root_size);
  file.fetch(root);
  return {part, root, said.root_digest, said.index_position, [&file](auto bytes) { file.fetch(bytes); }};
}

void seal_sections(std::vector<std::uint8_t>& file) {
  constexpr std::size_t end_at = 16, facts = 64;  // as wire/archive/end.cpp has them
  for (std::size_t position = 0; file.size() - position >= wire::Section::most_head + wire::ArchiveEnd::size;) {
    const std::size_t head = wire::Section{position}.head().size();
    std::uint64_t end = 0;
    std::memcpy(&end, file.data() + position + head - facts + end_at, sizeof end);
    const bool is_complete = end >= position + head + wire::ArchiveEnd::size && end <= file.size();
    put_head(file, position, is_complete ? static_cast<std::size_t>(end) : 0);
    if (!is_complete) return;
    position = static_cast<std::size_t>(end);
  }
}

}  // namespace jaxexp::tests

// The public view of archives.
#include "jaxexp/archive.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "wire/api/translating.h"
#include "wire/archive/end.h"
#include "wire/archive/index.h"
#include "wire/base/error.h"

namespace jaxexp {
namespace {

/// The archive's end: that of the file, or the last one inside it where an append was interrupted. Returns the position
/// behind it, and what it says.
std::pair<std::size_t, wire::ArchiveEnd> end_of(std::span<const std::uint8_t> file) {
  using wire::ArchiveEnd;
  std::size_t end = file.size();
  if (end >= ArchiveEnd::size) {
    const auto last = file.last(ArchiveEnd::size);
    if (const auto found = ArchiveEnd::read(last)) return {end, *found};
    if (ArchiveEnd::is_resembled_by(last))
      throw wire::Error({}, "an archive's end", "a damaged one; get another copy of the archive");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (std::size_t magic = text.size();
       magic != 0 && (magic = text.rfind(ArchiveEnd::magic, magic - 1)) != text.npos;) {
    if (magic < ArchiveEnd::magic_at) break;
    const std::size_t start = magic - ArchiveEnd::magic_at;
    if (file.size() - start < ArchiveEnd::size) continue;
    if (const auto found = ArchiveEnd::read(file.subspan(start, ArchiveEnd::size)))
      return {start + ArchiveEnd::size, *found};
  }
  throw wire::Error({}, "an archive of artifacts, with an index that its end points to", "something else");
}

}  // namespace

struct Archive::State {
  explicit State(std::span<const std::uint8_t> file) : file(file) {
    const auto [end, said] = end_of(file);
    this->end = end;
    if (said.index_position > end || said.index_size > end - said.index_position ||
        said.root_position > said.index_size || said.root_size > said.index_size - said.root_position)
      throw wire::Error({}, "an index inside the archive", "one that leads out of it");
    const auto bytes = file.subspan(said.index_position, said.index_size);
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) != 0)
      throw std::invalid_argument("an archive has to begin at a multiple of eight, as a mapped file does");
    index.emplace(bytes, bytes.subspan(said.root_position, said.root_size), said.root_digest, said.index_position);
  }

  std::span<const std::uint8_t> file;
  std::size_t end;
  std::optional<wire::ArchiveIndex> index;
};

Archive::Archive(std::span<const std::uint8_t> file)
    : state_(translating([&] { return std::make_shared<const State>(file); })) {}

std::size_t Archive::size() const { return state_->index->size(); }

std::vector<std::string_view> Archive::names() const {
  return translating([&] {
    std::vector<std::string_view> names;
    for (std::uint32_t i = 0; i < state_->index->size(); ++i)
      names.push_back(state_->index->member(i).name()->string_view());
    return names;
  });
}

bool Archive::contains(std::string_view name) const {
  return translating([&] { return state_->index->find(name).has_value(); });
}

Artifact Archive::artifact(std::string_view name) const {
  return translating([&] {
    const auto number = state_->index->find(name);
    if (!number) throw std::out_of_range("there is no member '" + std::string(name) + "' in the archive");
    const auto& member = state_->index->member(*number);
    const auto& place = *member.place();
    std::vector<std::span<const std::uint8_t>> modules;
    if (place.apart())
      for (const auto* module : *member.modules())
        modules.push_back(state_->file.subspan(module->position(), module->size()));
    return Artifact(state_->file.subspan(place.position(), place.size()), modules);
  });
}

std::size_t Archive::unfinished_bytes() const { return state_->file.size() - state_->end; }

}  // namespace jaxexp

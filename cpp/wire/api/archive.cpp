// The public view of archives.
#include "jaxexp/archive.h"

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "wire/api/translating.h"
#include "wire/archive/end.h"
#include "wire/archive/index.h"
#include "wire/archive/weights.h"
#include "wire/base/error.h"
#include "wire/base/text.h"

namespace jaxexp {
namespace {

wire::FoundEnd end_of(std::span<const std::uint8_t> file) {
  return wire::find_end(
      file.size(), [&](std::uint64_t position, std::size_t size) { return file.subspan(position, size); },
      /*may_walk=*/true);
}

}  // namespace

struct Archive::State {
  explicit State(std::span<const std::uint8_t> file) : file(file) {
    const auto [end, said, rest, section] = end_of(file);
    this->end = end;
    const auto root = file.subspan(said.index_position + said.root_position, said.root_size);
    // Its tables are read where they lie, and were written for multiples of eight, where a mapped file begins.
    if (reinterpret_cast<std::uintptr_t>(file.data()) % alignof(std::uint64_t) == 0) {
      index.emplace(std::vector<wire::ArchiveIndex::Part>{{0, file}}, root, said.root_digest, said.index_position,
                    said.index_size);
      return;
    }
    aligned_root.resize((root.size() + 7) / 8);
    std::memcpy(aligned_root.data(), root.data(), root.size());
    const std::span copy(reinterpret_cast<const std::uint8_t*>(aligned_root.data()), root.size());
    const auto fetch = [&](const wire::IndexParts::Places& places, const auto& take) {
      for (const auto& [position, size] : places) take(file.subspan(position, size));
    };
    aligned.read(fetch, copy, said.root_digest, said.index_position, said.index_size);
    index.emplace(aligned.parts(), copy, said.root_digest, said.index_position, said.index_size);
  }

  std::span<const std::uint8_t> file;
  std::size_t end;
  std::vector<std::uint64_t> aligned_root;
  wire::IndexParts aligned;
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

Artifact Archive::artifact(std::string_view name) const { return artifact(name, false); }
Artifact Archive::copied_artifact(std::string_view name) const { return artifact(name, true); }

Artifact Archive::artifact(std::string_view name, bool is_copied) const {
  return translating([&] {
    const auto number = state_->index->find(name);
    if (!number) {
      const auto quoted = [&](std::size_t i) {
        return "'" + state_->index->member(static_cast<std::uint32_t>(i)).name()->str() + "'";
      };
      throw std::out_of_range(wire::escaped("the archive has no member '" + std::string(name) + "'; it has " +
                                            wire::listed(size(), quoted)));
    }
    const auto& member = state_->index->member(*number);
    const auto& place = *member.place();
    std::vector<std::span<const std::uint8_t>> modules;
    if (place.apart())
      for (const auto* module : *member.modules())
        modules.push_back(state_->file.subspan(module->position(), module->size()));
    const auto find_tensor = [&](const wire::Digest& digest) {
      const auto* const weights = state_->index->weights();
      const auto* const tensor = weights ? wire::find_tensor(*weights, digest) : nullptr;
      return tensor ? state_->file.subspan(tensor->position(), tensor->size()) : std::span<const std::uint8_t>();
    };
    return Artifact(state_->file.subspan(place.position(), place.size()), modules, find_tensor, is_copied);
  });
}

std::size_t Archive::unfinished_bytes() const { return state_->file.size() - state_->end; }

}  // namespace jaxexp

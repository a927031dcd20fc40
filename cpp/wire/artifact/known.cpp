// Finding metadata that were checked before, and checking what they do not tell.
#include "wire/artifact/known.h"

#include <cstring>
#include <mutex>
#include <utility>

#include "wire/artifact/layout.h"
#include "wire/base/unaligned.h"
#include "wire/exported/chain.h"

namespace jaxexp::wire {
namespace {

constexpr std::size_t tables_start = sizeof(flatbuffers::uoffset_t) + head_size;

/// What stands behind the head, which says how large the artifact is.
std::span<const std::uint8_t> tables_of(const Trailer& trailer) { return trailer.metadata().subspan(tables_start); }

std::uint32_t root_of(const Trailer& trailer) { return load<std::uint32_t>(trailer.metadata().data()); }

bool equal(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

/// Whether an artifact passes every check of verify.h and check.h, given that one with the same metadata and other
/// modules did. All limits are sums over the metadata, or over these and the modules, and grow with the artifact.
bool is_within(const Known::Metadata& same, const Trailer& trailer, const schema::Exported& root) {
  const auto artifact = trailer.artifact();
  if (artifact.size() < same.size) return false;
  std::uint64_t others = artifact.size();
  for (const auto& [order, function] : Chain(root)) {
    const auto* const module = reinterpret_cast<const std::uint8_t*>(function.mlir_module_serialized());
    const std::size_t position = static_cast<std::size_t>(module - artifact.data()) + sizeof(flatbuffers::uoffset_t);
    if (position > artifact.size()) return false;
    const std::size_t size = function.mlir_module_serialized()->size();
    if (size > artifact.size() - position || size > others) return false;
    others -= size;
  }
  return others >= same.without_modules;
}

}  // namespace

const Known::Metadata* Known::open(Opened::Bytes buffer, std::span<const Opened::Bytes> modules,
                                   std::optional<Opened>& opened) {
  const bool image = !modules.empty();
  std::optional<Trailer> trailer = Trailer::read(buffer, image);
  if (!trailer) return opened.emplace(buffer, modules, std::nullopt), nullptr;
  const Key key{image, digest(tables_of(*trailer))};
  if (const Metadata* const same = find(key, *trailer)) {
    const auto& root = *reinterpret_cast<const schema::Exported*>(trailer->artifact().data() + same->root);
    if (is_within(*same, *trailer, root))
      opened.emplace(*trailer, root, modules);
    else
      opened.emplace(buffer, modules, std::move(trailer));
    return same;
  }
  opened.emplace(buffer, modules, std::move(trailer));
  return insert(key, *opened);
}

std::size_t Known::size() const {
  const std::shared_lock lock(mutex_);
  return metadata_.size();
}

/// Also null where other metadata have the same digest, because equal digests are no proof.
const Known::Metadata* Known::find(const Key& key, const Trailer& trailer) const {
  const std::shared_lock lock(mutex_);
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || found->second.root != root_of(trailer)) return nullptr;
  return equal(found->second.tables, tables_of(trailer)) ? &found->second : nullptr;
}

const Known::Metadata* Known::insert(const Key& key, const Opened& opened) {
  const Trailer& trailer = *opened.trailer();
  // The metadata do not determine tables that lie in the modules' bytes or in the head.
  if (opened.tables().begin < tables_start || opened.tables().end > trailer.metadata().size()) return nullptr;
  std::uint64_t others = trailer.artifact().size();
  for (const auto& [order, function] : Chain(opened.root())) others -= function.mlir_module_serialized()->size();
  const std::unique_lock lock(mutex_);
  const auto number = static_cast<std::uint32_t>(metadata_.size());
  const auto [place, is_new] = metadata_.try_emplace(
      key, Metadata{number, root_of(trailer), tables_of(trailer), trailer.artifact().size(), others});
  const Metadata& same = place->second;
  // Another thread may have been quicker.
  return is_new || (same.root == root_of(trailer) && equal(same.tables, tables_of(trailer))) ? &same : nullptr;
}

}  // namespace jaxexp::wire

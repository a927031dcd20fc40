// The order of the checks: digests, structure, meaning, and whether trailer and artifact fit.
#include "wire/artifact/opened.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>

#include "wire/artifact/layout.h"
#include "wire/base/flat_map.h"
#include "wire/base/unaligned.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

/// Of modules that lie apart, the sizes; a digest is compared when the module is used.
void check_sizes(const Trailer& trailer, std::span<const Opened::Bytes> modules) {
  const std::size_t functions = trailer.content().functions()->size();
  if (modules.size() != functions)
    throw Error({nullptr, "modules"}, std::to_string(functions) + " modules for as many functions",
                std::to_string(modules.size()));
  for (std::size_t order = 0; order < functions; ++order)
    if (modules[order].size() != trailer.notes(order).module_size())
      throw Error({nullptr, "modules", static_cast<std::int64_t>(order)},
                  "a module of " + std::to_string(trailer.notes(order).module_size()) + " bytes",
                  "one of " + std::to_string(modules[order].size()));
}

}  // namespace

Opened::Opened(Bytes buffer, std::span<const Bytes> modules, std::optional<Trailer> trailer)
    : trailer_(std::move(trailer)), modules_(modules.begin(), modules.end()) {
  if (!modules.empty() && !trailer_)
    throw Error({}, "an artifact whose modules are stored apart",
                std::to_string(buffer.size()) + " bytes that do not begin like one");
  const auto artifact = trailer_ ? trailer_->artifact() : buffer;
  root_ = &verify(artifact, tables_);
  check(*root_, artifact.size());
  if (trailer_) trailer_->check(*root_);
  if (!modules.empty()) check_sizes(*trailer_, modules);
}

Opened::Opened(const Trailer& trailer, const schema::Exported& root, std::span<const Bytes> modules)
    : trailer_(trailer), modules_(modules.begin(), modules.end()), root_(&root) {
  trailer.check(root);
  if (!modules.empty()) check_sizes(trailer, modules);
}

void Opened::check_module(const schema::Exported& exported, std::size_t order) const {
  if (is_module_checked(order)) return;
  trailer_->check_module(digest(module(exported, order)), order);
  checked_modules_ |= bit(order);
}

// Where the parts of an artifact are, before anything of it was verified.

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

// Finding metadata that were checked before, and checking what they do not tell.

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
bool is_within(const MetadataCache::Metadata& same, const Trailer& trailer, const schema::Exported& root) {
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

const MetadataCache::Metadata* MetadataCache::open(Opened::Bytes buffer, std::span<const Opened::Bytes> modules,
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

std::size_t MetadataCache::size() const {
  const std::shared_lock lock(mutex_);
  return metadata_.size();
}

/// Also null where other metadata have the same digest, because equal digests are no proof.
const MetadataCache::Metadata* MetadataCache::find(const Key& key, const Trailer& trailer) const {
  const std::shared_lock lock(mutex_);
  const auto found = metadata_.find(key);
  if (found == metadata_.end() || found->second.root != root_of(trailer)) return nullptr;
  return equal(found->second.tables, tables_of(trailer)) ? &found->second : nullptr;
}

const MetadataCache::Metadata* MetadataCache::insert(const Key& key, const Opened& opened) {
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

// Trees share subtrees, each of which is looked at once.

namespace {

class Look {
 public:
  explicit Look(std::vector<Texts::Node>& found) : found_(found) {}

  void tree(const schema::PyTreeDef& node, const Path& path) {
    if (node.kind() == schema::PyTreeDefKind::leaf) return;
    if (!seen_.insert(reinterpret_cast<std::uintptr_t>(&node)).second) return;
    if (node.kind() == schema::PyTreeDefKind::custom) custom(node, path);
    for (std::uint32_t i = 0; i < Values::length(node.children()); ++i)
      tree(*node.children()->Get(i), {&path, "children", i});
  }

 private:
  void custom(const schema::PyTreeDef& node, const Path& path) {
    const std::string_view name = node.custom_name()->string_view();
    if (!name.starts_with("jaxexp.") && name != "collections.OrderedDict") return;
    const auto* const data = node.custom_auxdata();
    const std::uint32_t children = Values::length(node.children());
    if (!known_.emplace(data, name, children).second) return;
    Texts::Node& found = found_.emplace_back(Texts::Node{path.str(), std::string(name), {}, children});
    if (data) found.data.assign(reinterpret_cast<const char*>(data->data()), data->size());
  }

  std::vector<Texts::Node>& found_;
  FlatMap<Nothing> seen_;
  std::set<std::tuple<const void*, std::string_view, std::uint32_t>> known_;
};

}  // namespace

Texts texts_of(const Opened& opened) {
  Texts texts;
  if (opened.trailer()) {
    const auto* const metadata = opened.trailer()->content().metadata();
    for (std::uint32_t i = 0; i < Values::length(metadata); ++i)
      texts.metadata.emplace_back(metadata->Get(i)->key()->str(), metadata->Get(i)->value()->str());
  }
  Look look(texts.nodes);
  for (const auto& [order, function] : Chain(opened.root())) {
    const std::string of_function = path_in_chain(order);
    const Path path{nullptr, of_function};
    look.tree(*function.in_tree(), {&path, "in_tree"});
    look.tree(*function.out_tree(), {&path, "out_tree"});
  }
  return texts;
}

}  // namespace jaxexp::wire

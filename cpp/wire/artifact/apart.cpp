// Cutting modules out of an artifact, and putting them back, by the fields that lead to them.
#include "wire/artifact/apart.h"

#include <algorithm>
#include <string_view>

#include "wire/artifact/layout.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

constexpr std::size_t length_size = sizeof(flatbuffers::uoffset_t);

/// How many bytes a module of this size takes in an artifact.
std::size_t room(std::size_t size) { return length_size + size + padding(size); }

/// The metadata of an artifact or image, changed for modules of other sizes and a total of `end` bytes.
std::vector<std::uint8_t> with_modules(const Opened& opened, std::span<const std::size_t> sizes, std::size_t end,
                                       bool image) {
  const auto old = opened.trailer()->metadata();
  std::vector<std::uint8_t> metadata(old.begin(), old.end());
  write_head(metadata.data(), end, image);
  std::size_t position = metadata.size();
  for (const auto& [order, function] : Chain(opened.root())) {
    // Verified to be a field of a table inside the metadata or behind it, where a hostile artifact may have tables.
    const auto& table = reinterpret_cast<const flatbuffers::Table&>(function);
    const auto field =
        static_cast<std::size_t>(table.GetAddressOf(schema::Exported::VT_MLIR_MODULE_SERIALIZED) - old.data());
    if (field + length_size > metadata.size())
      throw Error({nullptr, "metadata"}, "tables in front of the modules", "some behind");
    flatbuffers::WriteScalar(metadata.data() + field, static_cast<flatbuffers::uoffset_t>(position - field));
    position += room(sizes[order]);
  }
  return metadata;
}

std::size_t total(std::span<const std::size_t> sizes) {
  std::size_t sum = 0;
  for (const std::size_t size : sizes) sum += room(size);
  return sum;
}

}  // namespace

std::vector<std::uint8_t> cut(std::span<const std::uint8_t> artifact) {
  const Opened opened(artifact);
  if (!opened.trailer())
    throw Error({nullptr, "trailer"}, "a trailer, without which no module can be stored apart",
                "none: the artifact was written by jax.export, or with trailer=False");
  const Trailer& trailer = *opened.trailer();
  std::vector<Opened::Bytes> modules;
  for (const auto& [order, function] : Chain(opened.root())) {
    opened.check_module(function, order);
    modules.push_back(opened.module(function, order));
  }
  const std::vector<std::size_t> sizes(modules.size(), 0);
  const auto content = trailer.content_bytes();
  const std::size_t start = trailer.metadata().size() + total(sizes);
  const std::size_t end = start + content.size() + sizeof(Digest) + TrailerWriter::footer_size;

  std::vector<std::uint8_t> image = with_modules(opened, sizes, end, true);
  image.resize(end);
  const auto metadata = std::span(image).first(trailer.metadata().size());
  write_trailer(metadata, content, &trailer.metadata_digest(), image.data() + start);
  // An image is refused where tables share the fields that lead to modules, or are only within the limits together with
  // the modules.
  const Joined check(image, modules);
  return image;
}

Joined::Joined(std::span<const std::uint8_t> image, std::span<const Opened::Bytes> modules) : opened_(image, modules) {
  if (modules.empty())
    throw Error({nullptr, "modules"}, "modules, which are stored apart from the artifact", "no modules");
  const Trailer& trailer = *opened_.trailer();
  std::vector<std::size_t> sizes;
  for (const auto module : modules) sizes.push_back(module.size());
  if (trailer.metadata().size() + total(sizes) >= max_buffer_size)
    throw Error({nullptr, "modules"}, "modules of less than 2 GiB in total", "more");
  size_ = trailer.whole_size();
  metadata_ = with_modules(opened_, sizes, size_, false);
  if (digest(metadata_) != trailer.metadata_digest())
    throw Error({nullptr, "metadata"}, "an image of an artifact, with metadata of the digest that it was made from",
                "different metadata: the image or the artifact was not made by jaxexp");
}

void Joined::write(std::uint8_t* target) const {
  const Trailer& trailer = *opened_.trailer();
  target = std::ranges::copy(metadata_, target).out;
  for (const auto& [order, function] : Chain(opened_.root())) {
    const auto module = opened_.module(function, order);
    flatbuffers::WriteScalar(target, static_cast<flatbuffers::uoffset_t>(module.size()));
    target += length_size;
    trailer.check_module(copy_and_digest(target, module), order);
    target = std::fill_n(target + module.size(), padding(module.size()), std::uint8_t{0});
  }
  write_trailer(metadata_, trailer.content_bytes(), nullptr, target);
}

// Writing the trailer of an artifact again, with other notes.

namespace {

std::vector<std::uint32_t> copied(const flatbuffers::Vector<std::uint32_t>* indices) {
  return indices ? std::vector<std::uint32_t>(indices->begin(), indices->end()) : std::vector<std::uint32_t>();
}

Notes notes_of(const Trailer& trailer) {
  const schema::Trailer& content = trailer.content();
  Notes notes{content.writer()->str(), {}};
  for (std::uint32_t i = 0; i < Values::length(content.metadata()); ++i) {
    const schema::Entry& entry = *content.metadata()->Get(i);
    notes.metadata.emplace_back(entry.key()->str(), entry.value()->str());
  }
  if (content.weights()) notes.weights = read_weights(*content.weights());
  if (content.cases()) notes.cases = read_cases(*content.cases());
  notes.sizes = trailer.sizes();
  for (const std::string_view name : trailer.padded()) notes.padded.emplace_back(name);
  for (std::uint32_t i = 0; i < Values::length(content.constraints()); ++i)
    notes.constraints.push_back(content.constraints()->Get(i)->str());
  for (const schema::FunctionNotes* function : *content.functions())
    notes.functions.push_back({copied(function->weak_arguments()), copied(function->weak_results())});
  return notes;
}

}  // namespace

std::vector<std::uint8_t> with_notes(std::span<const std::uint8_t> artifact,
                                     const std::function<void(Notes&)>& change) {
  const Opened opened(artifact);
  if (!opened.trailer())
    throw Error({nullptr, "trailer"}, "a trailer, which notes are in",
                "none: the artifact was written by jax.export, or with trailer=False");
  const Trailer& trailer = *opened.trailer();
  Notes notes = notes_of(trailer);
  change(notes);
  std::vector<std::span<const std::uint8_t>> modules;
  for (const auto& [order, function] : Chain(opened.root())) modules.push_back(opened.module(function, order));
  TrailerWriter writer(notes, modules);
  for (std::size_t order = 0; order < modules.size(); ++order)
    writer.set_module_digest(order, trailer.module_digest(order));
  const auto old = trailer.artifact();
  std::vector<std::uint8_t> bytes(old.begin(), old.end());
  bytes.resize(old.size() + writer.size());
  write_head(bytes.data(), bytes.size());
  writer.finish(std::span(bytes).first(trailer.metadata().size()), bytes.data() + old.size());
  const Opened check(bytes);
  return bytes;
}

}  // namespace jaxexp::wire

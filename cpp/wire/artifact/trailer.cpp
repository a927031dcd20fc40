// Reading, checking and writing trailers.
#include "wire/artifact/trailer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "wire/artifact/layout.h"
#include "wire/base/error.h"
#include "wire/base/text.h"
#include "wire/base/unaligned.h"
#include "wire/exported/dimension.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

using flatbuffers::Offset, flatbuffers::String, flatbuffers::Vector;

constexpr std::size_t footer_size = TrailerWriter::footer_size;

// Places in a footer; schema/trailer.fbs has the table. In front of an image's is one digest more.
constexpr std::size_t metadata_digest_at = 0, metadata_size_at = 16, content_size_at = 20, trailer_digest_at = 24,
                      mark_at = 40;

const Path trailer_path{nullptr, "trailer"};

[[noreturn]] void refuse(const Path& path, std::string expected, std::string found) {
  throw Error(path, std::move(expected), std::move(found));
}

std::string changed(const Digest& found, const Digest& expected) {
  return "others, of digest " + hexadecimal(found) + " instead of " + hexadecimal(expected) +
         ": the file was damaged; get another copy of it";
}

void check_digest(std::span<const std::uint8_t> bytes, const Digest& expected, const Path& path, const char* what) {
  const Digest found = digest(bytes);
  if (found != expected) refuse(path, what, changed(found, expected));
}

Digest load_digest(const std::uint8_t* bytes) { return load<Digest>(bytes); }

/// A hostile trailer may use one text in many places, and a reader copies it each time. So the sum of all texts is
/// limited.
void check_texts(const schema::Trailer& content, std::size_t size) {
  std::size_t left = size;
  const auto text = [&](const flatbuffers::String& string, const Path& path) {
    if (string.size() > left) refuse(path, "texts of at most " + std::to_string(size) + " bytes in total", "more");
    left -= string.size();
    if (!is_utf8({string.Data(), string.size()})) refuse(path, "UTF-8", "bytes that are not");
  };
  text(*content.writer(), {&trailer_path, "writer"});
  if (Values::length(content.constraints()) > max_constraints)
    refuse({&trailer_path, "constraints"}, "at most " + std::to_string(max_constraints) + " constraints", "more");
  for (std::uint32_t i = 0; i < Values::length(content.constraints()); ++i) {
    const Path path{&trailer_path, "constraints", i};
    const String& constraint = *content.constraints()->Get(i);
    text(constraint, path);
    parse_constraint(constraint.string_view(), path);
  }
  for (std::uint32_t i = 0; i < Values::length(content.metadata()); ++i) {
    const Path path{&trailer_path, "metadata", i};
    const schema::Entry& entry = *content.metadata()->Get(i);
    text(*entry.key(), {&path, "key"});
    text(*entry.value(), {&path, "value"});
    if (i > 0 && content.metadata()->Get(i - 1)->key()->string_view() >= entry.key()->string_view())
      refuse({&path, "key"}, "keys in ascending order", "'" + shortened(entry.key()->string_view()) + "'");
  }
  if (Values::length(content.sizes()) > max_sizes)
    refuse({&trailer_path, "sizes"}, "at most " + std::to_string(max_sizes) + " sets of sizes", "more");
  for (std::uint32_t i = 0; i < Values::length(content.sizes()); ++i) {
    const Path path{&trailer_path, "sizes", i};
    std::string_view last;
    for (const schema::Size* const one : *content.sizes()->Get(i)->sizes()) {
      text(*one->variable(), path);
      const std::string_view name = one->variable()->string_view();
      if (name <= last) refuse(path, "dimension variables in ascending order", "'" + shortened(name) + "'");
      if (one->size() < 1) refuse(path, "sizes of at least 1", std::to_string(one->size()));
      last = name;
    }
  }
  for (std::uint32_t i = 0; i < Values::length(content.padded()); ++i) {
    const Path path{&trailer_path, "padded", i};
    const String& name = *content.padded()->Get(i);
    text(name, path);
    if (i > 0 && content.padded()->Get(i - 1)->string_view() >= name.string_view())
      refuse(path, "dimension variables in ascending order", "'" + shortened(name.string_view()) + "'");
  }
  if (content.weights()) check_weights(*content.weights(), {&trailer_path, "weights"}, text);
  if (content.cases()) check_cases(*content.cases(), {&trailer_path, "cases"}, size, text);
}

[[noreturn]] void refuse_kind(bool image) {
  if (image) refuse(trailer_path, "an artifact whose modules are stored apart", "one that has its modules");
  refuse(trailer_path, "an artifact with its modules",
         "one whose modules are stored apart, as in an archive: read it through the archive");
}

void check_indices(const flatbuffers::Vector<std::uint32_t>* indices, std::uint32_t end, const Path& path) {
  for (std::uint32_t i = 0; i < Values::length(indices); ++i)
    if (indices->Get(i) >= end || (i > 0 && indices->Get(i - 1) >= indices->Get(i)))
      refuse({path.parent, path.name, i}, "ascending indices below " + std::to_string(end),
             std::to_string(indices->Get(i)));
}

}  // namespace

std::optional<Trailer> Trailer::read(std::span<const std::uint8_t> buffer, bool image) {
  constexpr std::size_t mark_start = sizeof(flatbuffers::uoffset_t), end_start = mark_start + mark.size();
  if (buffer.size() < mark_start + head_size) return std::nullopt;
  // A mark that is damaged still says that there is a trailer, unless most of it is.
  const auto* const head = buffer.data() + mark_start;
  const auto& wanted = image ? image_mark : mark;
  const auto same = [&](const auto& mark) {
    return std::inner_product(mark.begin(), mark.end(), head, std::size_t{0}, std::plus<>(), std::equal_to<>());
  };
  if (const auto& other = image ? mark : image_mark; same(other) == other.size()) refuse_kind(image);
  if (same(mark) <= mark.size() / 2 && same(image_mark) <= mark.size() / 2) return std::nullopt;
  if (same(wanted) < mark.size())
    refuse(trailer_path, "the mark of a trailer at byte " + std::to_string(mark_start),
           "a damaged one; get another copy of the file");

  const std::size_t end = load<std::uint32_t>(buffer.data() + end_start);
  if (end > buffer.size())
    refuse(trailer_path, std::to_string(end) + " bytes, as the artifact says of itself",
           std::to_string(buffer.size()) + ": the file was cut or damaged; get another copy of it");
  const auto no_trailer = [&] {
    refuse(trailer_path, "the end of a trailer at byte " + std::to_string(end),
           "none there: the file was damaged; get another copy of it");
  };
  constexpr std::size_t start = mark_start + head_size;
  const std::size_t footer_size = wire::footer_size + (image ? sizeof(Digest) : 0);
  if (end < start + footer_size) no_trailer();
  const std::uint8_t* const footer = buffer.data() + end - wire::footer_size;
  if (!std::equal(wanted.begin(), wanted.end(), footer + mark_at)) no_trailer();
  const std::size_t metadata_size = load<std::uint32_t>(footer + metadata_size_at);
  const std::size_t content_size = load<std::uint32_t>(footer + content_size_at);
  if (content_size > end - footer_size - start || content_size % 4 != 0 || end % 4 != 0) no_trailer();
  const std::size_t content_start = end - footer_size - content_size;
  if (metadata_size < start || metadata_size > content_start || content_start >= max_buffer_size) no_trailer();
  check_digest(buffer.subspan(content_start, content_size + footer_size - wire::footer_size + trailer_digest_at),
               load_digest(footer + trailer_digest_at), trailer_path, "the trailer's bytes as they were written");
  check_digest(buffer.first(metadata_size), load_digest(footer + metadata_digest_at), {nullptr, "metadata"},
               "the bytes of the metadata as they were written");

  // The tables have few levels, and flatc's own verifier is fast enough as long as no table is shared: then each takes
  // four bytes, and the offset to it four.
  const std::uint8_t* const content = buffer.data() + content_start;
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(content_size / 8 + 1);
  flatbuffers::Verifier verifier(content, content_size, options);
  if (content_size < FLATBUFFERS_MIN_BUFFER_SIZE || !schema::VerifyTrailerBuffer(verifier))
    refuse(trailer_path, "tables inside the trailer", "some that lead out of it");
  Trailer trailer;
  trailer.artifact_ = buffer.first(content_start);
  trailer.content_bytes_ = {content, content_size};
  trailer.metadata_size_ = metadata_size;
  trailer.metadata_digest_ = load_digest(buffer.data() + end - footer_size);
  trailer.image_ = image;
  trailer.content_ = schema::GetTrailer(content);
  check_texts(*trailer.content_, content_size);
  return trailer;
}

void Trailer::check(const schema::Exported& root) const {
  const std::uint32_t functions = Values::length(content_->functions());
  std::size_t position = metadata_size_;
  std::size_t count = 0;
  for (const auto& [order, function] : Chain(root)) {
    const Path path{&trailer_path, "functions", static_cast<std::int64_t>(order)};
    ++count;
    if (order >= functions) refuse(path, "notes on each function", std::to_string(functions) + " of them");
    const schema::FunctionNotes& notes = this->notes(order);
    const auto& module = *function.mlir_module_serialized();
    const auto* start = reinterpret_cast<const std::uint8_t*>(&module);
    const std::size_t size = image_ ? 0 : notes.module_size();
    if (start != artifact_.data() + position || module.size() != size)
      refuse({&path, "module_size"},
             "a module of " + std::to_string(size) + " bytes at byte " + std::to_string(position),
             std::to_string(module.size()) + " bytes at byte " + std::to_string(start - artifact_.data()));
    position += sizeof(flatbuffers::uoffset_t) + size;
    for (std::size_t left = padding(size); left > 0; --left)
      if (position >= artifact_.size() || artifact_[position++] != 0)
        refuse({&path, "module_size"}, "zeros behind the module", "another byte");
    check_indices(notes.weak_arguments(), Values::arguments(function).size(), {&path, "weak_arguments"});
    check_indices(notes.weak_results(), Values::results(function).size(), {&path, "weak_results"});
  }
  const std::size_t arguments = Values::arguments(root).size();
  const std::uint32_t weights = content_->weights() ? content_->weights()->tensors()->size() : 0;
  if (weights > arguments)
    refuse({&trailer_path, "weights"}, "at most " + std::to_string(arguments) + " tensors, one for each argument",
           std::to_string(weights));
  if (content_->cases()) check_signatures(*content_->cases(), {&trailer_path, "cases"}, root, weights);
  if (count != functions)
    refuse({&trailer_path, "functions"}, "notes on " + std::to_string(count) + " functions", std::to_string(functions));
  if (position != artifact_.size())
    refuse(trailer_path, "a trailer at byte " + std::to_string(position) + ", behind the last module",
           "one at byte " + std::to_string(artifact_.size()));
}

std::vector<Sizes> Trailer::sizes() const {
  std::vector<Sizes> found;
  for (std::uint32_t i = 0; i < Values::length(content_->sizes()); ++i) {
    Sizes& sizes = found.emplace_back();
    for (const schema::Size* const one : *content_->sizes()->Get(i)->sizes())
      sizes.emplace_back(one->variable()->str(), one->size());
  }
  return found;
}

std::vector<std::string_view> Trailer::padded() const {
  std::vector<std::string_view> found;
  for (std::uint32_t i = 0; i < Values::length(content_->padded()); ++i)
    found.push_back(content_->padded()->Get(i)->string_view());
  return found;
}

std::size_t Trailer::whole_size() const {
  std::size_t size = metadata_size_ + content_bytes_.size() + footer_size;
  for (const schema::FunctionNotes* notes : *content_->functions())
    size += sizeof(flatbuffers::uoffset_t) + notes->module_size() + padding(notes->module_size());
  return size;
}

Digest Trailer::artifact_digest() const {
  std::array<std::uint8_t, 2 * sizeof(std::uint32_t)> sizes;
  flatbuffers::WriteScalar(sizes.data(), static_cast<std::uint32_t>(metadata_size_));
  flatbuffers::WriteScalar(sizes.data() + sizeof(std::uint32_t), static_cast<std::uint32_t>(content_bytes_.size()));
  Digester digester;
  digester.update(content_bytes_);
  digester.update(metadata_digest_);
  digester.update(sizes);
  return digester.digest();
}

Digest Trailer::module_digest(std::size_t order) const { return stored(*notes(order).module_digest()); }

void Trailer::check_module(const Digest& found, std::size_t order) const {
  const Digest expected = module_digest(order);
  if (found == expected) return;
  refuse({nullptr, path_in_chain(order, "mlir_module_serialized")}, "the bytes of the module as they were written",
         changed(found, expected));
}

TrailerWriter::TrailerWriter(const Notes& notes, std::span<const std::span<const std::uint8_t>> modules) : fbb_(512) {
  std::size_t size = 0;
  for (const auto& [key, value] : notes.metadata) size += key.size() + value.size() + 64;
  for (const std::string& constraint : notes.constraints) size += constraint.size() + 64;
  for (const Notes::Function& function : notes.functions)
    size += 4 * (function.weak_arguments.size() + function.weak_results.size()) + 128;
  for (const Sizes& sizes : notes.sizes)
    for (const auto& [name, number] : sizes) size += name.size() + 64;
  for (const std::string& name : notes.padded) size += name.size() + 64;
  if (notes.weights) size += notes.weights->size();
  if (notes.cases) size += notes.cases->size();
  if (size >= max_buffer_size / 2) throw TooLarge();

  std::vector<Offset<schema::FunctionNotes>> functions;
  functions.reserve(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const auto indices = [&](const std::vector<std::uint32_t>& indices) {
      return indices.empty() ? Offset<Vector<std::uint32_t>>() : fbb_.CreateVector(indices);
    };
    const auto arguments = indices(notes.functions[i].weak_arguments),
               results = indices(notes.functions[i].weak_results);
    const schema::Digest unknown;  // zeros
    functions.push_back(
        schema::CreateFunctionNotes(fbb_, static_cast<std::uint32_t>(modules[i].size()), &unknown, arguments, results));
  }
  const auto function_vector = fbb_.CreateVector(functions);
  Offset<Vector<Offset<String>>> constraints;
  if (!notes.constraints.empty()) constraints = fbb_.CreateVectorOfStrings(notes.constraints);
  Offset<Vector<Offset<schema::Entry>>> metadata;
  if (!notes.metadata.empty()) {
    std::vector<Offset<schema::Entry>> entries;
    for (const auto& [key, value] : notes.metadata) {
      const auto key_text = fbb_.CreateString(key), value_text = fbb_.CreateString(value);
      entries.push_back(schema::CreateEntry(fbb_, key_text, value_text));
    }
    metadata = fbb_.CreateVector(entries);
  }
  Offset<schema::Weights> weights;
  if (notes.weights) weights = write_weights(fbb_, *notes.weights);
  Offset<schema::Cases> cases;
  if (notes.cases) cases = write_cases(fbb_, *notes.cases);
  Offset<Vector<Offset<schema::Sizes>>> sizes;
  if (!notes.sizes.empty()) {
    std::vector<Offset<schema::Sizes>> sets;
    for (const Sizes& set : notes.sizes) {
      std::vector<Offset<schema::Size>> each;
      for (const auto& [name, number] : set) each.push_back(schema::CreateSize(fbb_, fbb_.CreateString(name), number));
      sets.push_back(schema::CreateSizes(fbb_, fbb_.CreateVector(each)));
    }
    sizes = fbb_.CreateVector(sets);
  }
  Offset<Vector<Offset<String>>> padded;
  if (!notes.padded.empty()) padded = fbb_.CreateVectorOfStrings(notes.padded);
  const auto writer = fbb_.CreateString(notes.writer);
  fbb_.Finish(
      schema::CreateTrailer(fbb_, writer, function_vector, constraints, metadata, weights, cases, sizes, padded));
}

void TrailerWriter::set_module_digest(std::size_t order, const Digest& digest) {
  const schema::Trailer& content = *schema::GetTrailer(fbb_.GetBufferPointer());
  const auto* place = content.functions()->Get(static_cast<std::uint32_t>(order))->module_digest()->bytes()->Data();
  std::memcpy(const_cast<std::uint8_t*>(place), digest.data(), digest.size());  // in the builder's own memory
}

std::uint8_t* TrailerWriter::finish(std::span<const std::uint8_t> metadata, std::uint8_t* target) const {
  return write_trailer(metadata, {fbb_.GetBufferPointer(), fbb_.GetSize()}, nullptr, target);
}

std::uint8_t* write_trailer(std::span<const std::uint8_t> metadata, std::span<const std::uint8_t> content,
                            const Digest* image_of, std::uint8_t* target) {
  const std::uint8_t* const start = target;
  const auto add = [&](const auto& bytes) { target = std::ranges::copy(bytes, target).out; };
  const auto number = [&](std::size_t value) {
    flatbuffers::WriteScalar(target, static_cast<std::uint32_t>(value));
    target += sizeof(std::uint32_t);
  };
  add(content);
  if (image_of) add(*image_of);
  add(digest(metadata));
  number(metadata.size());
  number(content.size());
  add(digest({start, target}));
  add(image_of ? image_mark : mark);
  return target;
}

}  // namespace jaxexp::wire

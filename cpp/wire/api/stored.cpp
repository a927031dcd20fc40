// Texts and arrays stay where they are, in the artifact.
#include "wire/api/stored.h"

#include <array>

#include "wire/artifact/stored_digest.h"
#include "wire/exported/dtype_name.h"

namespace jaxexp::wire {
namespace {

using CaseValues = flatbuffers::Vector<flatbuffers::Offset<schema::CaseValue>>;

Case::Value value_in(const schema::CaseValue& value) {
  const auto shape = shape_of(value);
  Case::Value read{dtype_name(value.dtype()), {shape.begin(), shape.end()}, {}, {}, {}, {}};
  if (const auto* data = value.data()) read.data = {data->data(), data->size()};
  if (value.tensor() > 0) read.tensor = value.tensor() - 1;
  if (const auto* drawn = value.drawn())
    read.drawn = {static_cast<Case::Drawn::Distribution>(drawn->distribution()), drawn->seed(), drawn->first(),
                  drawn->second()};
  if (const auto* tolerance = value.tolerance()) read.tolerance = {tolerance->relative(), tolerance->absolute()};
  return read;
}

std::vector<Case::Value> values_in(const CaseValues& values) {
  std::vector<Case::Value> read;
  for (const schema::CaseValue* value : values) read.push_back(value_in(*value));
  return read;
}

/// The digest in front of the last mark of the artifact, with its modules in it.
Digest digest_of(const Trailer& trailer) {
  std::array<std::uint8_t, 2 * sizeof(std::uint32_t)> sizes;
  flatbuffers::WriteScalar(sizes.data(), static_cast<std::uint32_t>(trailer.metadata().size()));
  flatbuffers::WriteScalar(sizes.data() + sizeof(std::uint32_t),
                           static_cast<std::uint32_t>(trailer.content_bytes().size()));
  Digester digester;
  digester.update(trailer.content_bytes());
  digester.update(trailer.metadata_digest());
  digester.update(sizes);
  return digester.digest();
}

}  // namespace

std::vector<jaxexp::Weights::File> files_in(const Vectors::FilesRead& files) {
  std::vector<jaxexp::Weights::File> read;
  for (const schema::TensorFile* file : files)
    read.push_back({file->name()->string_view(), file->size(), stored(*file->content())});
  return read;
}

std::vector<jaxexp::Weights::Tensor> tensors_in(const Vectors::TensorsRead& tensors,
                                                std::span<const std::span<const std::uint8_t>> in_archive) {
  std::vector<jaxexp::Weights::Tensor> read;
  for (const schema::Tensor* tensor : tensors)
    read.push_back({tensor->name()->string_view(), tensor->file(), tensor->size(), stored(*tensor->digest()),
                    in_archive.empty() ? std::span<const std::uint8_t>() : in_archive[read.size()]});
  return read;
}

jaxexp::Cases cases_in(const Trailer& trailer, std::span<const std::span<const std::uint8_t>> in_archive) {
  const schema::Cases& cases = *trailer.content().cases();
  jaxexp::Cases read{{}, {}, files_in(*cases.files()), tensors_in(*cases.tensors(), in_archive), digest_of(trailer)};
  for (const schema::Case* one : *cases.cases())
    read.all.push_back({one->name()->string_view(), one->order(), values_in(*one->arguments()),
                        values_in(*one->results()), one->recording(), one->trace() != nullptr});
  for (const schema::Recording* recording : *cases.recordings()) {
    auto& facts = read.recordings.emplace_back();
    for (const schema::Entry* fact : *recording->facts())
      facts.emplace_back(fact->key()->string_view(), fact->value()->string_view());
  }
  return read;
}

}  // namespace jaxexp::wire

// Writing, checking and reading the weights of a trailer.
#include "wire/artifact/weights.h"

#include <algorithm>
#include <string_view>

#include "wire/artifact/stored_digest.h"
#include "wire/base/utf8.h"

namespace jaxexp::wire {

std::size_t Weights::size() const {
  std::size_t size = 64;
  for (const File& file : files) size += file.name.size() + 64;
  for (const Tensor& tensor : tensors) size += tensor.name.size() + 64;
  for (const OtherName& other : other_names) size += other.name.size() + 32;
  return size;
}

flatbuffers::Offset<schema::Weights> write_weights(flatbuffers::FlatBufferBuilder& fbb, const Weights& weights) {
  std::vector<flatbuffers::Offset<schema::TensorFile>> files;
  for (const Weights::File& file : weights.files) {
    const schema::Digest content = to_schema(file.content);
    const auto name = fbb.CreateString(file.name);
    files.push_back(schema::CreateTensorFile(fbb, name, file.size, &content));
  }
  std::vector<flatbuffers::Offset<schema::Tensor>> tensors;
  for (const Weights::Tensor& tensor : weights.tensors) {
    const schema::Digest digest = to_schema(tensor.digest);
    const auto name = fbb.CreateString(tensor.name);
    tensors.push_back(schema::CreateTensor(fbb, name, tensor.file, tensor.size, &digest));
  }
  std::vector<flatbuffers::Offset<schema::OtherName>> others;
  for (const Weights::OtherName& other : weights.other_names) {
    const auto name = fbb.CreateString(other.name);
    others.push_back(schema::CreateOtherName(fbb, name, other.tensor));
  }
  const auto file_vector = fbb.CreateVector(files);
  const auto tensor_vector = fbb.CreateVector(tensors);
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::OtherName>>> other_vector;
  if (!others.empty()) other_vector = fbb.CreateVector(others);
  return schema::CreateWeights(fbb, file_vector, tensor_vector, other_vector);
}

std::uint32_t count_of_other_names(const schema::Weights& weights) {
  return weights.other_names() ? weights.other_names()->size() : 0;
}

void check_weights(const schema::Weights& weights, const Path& path,
                   const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  for (std::uint32_t i = 0; i < weights.files()->size(); ++i) {
    const Path file{&path, "files", i};
    check_text(*weights.files()->Get(i)->name(), {&file, "name"});
  }
  std::vector<std::string_view> names;
  for (std::uint32_t i = 0; i < weights.tensors()->size(); ++i) {
    const schema::Tensor& tensor = *weights.tensors()->Get(i);
    const Path place{&path, "tensors", i};
    check_text(*tensor.name(), {&place, "name"});
    names.push_back(tensor.name()->string_view());
    if (tensor.file() >= weights.files()->size())
      throw Error({&place, "file"}, "an index below " + std::to_string(weights.files()->size()),
                  std::to_string(tensor.file()));
  }
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    const Path place{&path, "other_names", i};
    check_text(*other.name(), {&place, "name"});
    names.push_back(other.name()->string_view());
    if (other.tensor() >= weights.tensors()->size())
      throw Error({&place, "tensor"}, "an index below " + std::to_string(weights.tensors()->size()),
                  std::to_string(other.tensor()));
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error({&path, "tensors"}, "names that are different", "'" + shortened(*twice) + "' twice");
}

Weights read_weights(const schema::Weights& weights) {
  Weights read;
  for (const schema::TensorFile* file : *weights.files())
    read.files.push_back({file->name()->str(), file->size(), stored(*file->content())});
  for (const schema::Tensor* tensor : *weights.tensors())
    read.tensors.push_back({tensor->name()->str(), tensor->file(), tensor->size(), stored(*tensor->digest())});
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    read.other_names.push_back({other.name()->str(), other.tensor()});
  }
  return read;
}

}  // namespace jaxexp::wire

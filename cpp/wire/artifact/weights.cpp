// Writing, checking and reading the weights of a trailer.
#include "wire/artifact/weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "wire/artifact/layout.h"
#include "wire/base/text.h"

namespace jaxexp::wire {

std::size_t Weights::size() const {
  std::size_t size = 64;
  for (const File& file : files) size += file.name.size() + 64;
  for (const Tensor& tensor : tensors) size += tensor.name.size() + 64;
  for (const OtherName& other : other_names) size += other.name.size() + 32;
  return size;
}

Vectors::Files write_files(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::File>& files) {
  std::vector<flatbuffers::Offset<schema::TensorFile>> offsets;
  for (const Weights::File& file : files) {
    const schema::Digest content = to_schema(file.content);
    const auto name = fbb.CreateString(file.name);
    offsets.push_back(schema::CreateTensorFile(fbb, name, file.size, &content));
  }
  return fbb.CreateVector(offsets);
}

Vectors::Tensors write_tensors(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::Tensor>& tensors) {
  std::vector<flatbuffers::Offset<schema::Tensor>> offsets;
  for (const Weights::Tensor& tensor : tensors) {
    const schema::Digest digest = to_schema(tensor.digest);
    const auto name = fbb.CreateString(tensor.name);
    offsets.push_back(schema::CreateTensor(fbb, name, tensor.file, tensor.size, &digest));
  }
  return fbb.CreateVector(offsets);
}

flatbuffers::Offset<schema::Weights> write_weights(flatbuffers::FlatBufferBuilder& fbb, const Weights& weights) {
  std::vector<flatbuffers::Offset<schema::OtherName>> others;
  for (const Weights::OtherName& other : weights.other_names) {
    const auto name = fbb.CreateString(other.name);
    others.push_back(schema::CreateOtherName(fbb, name, other.tensor));
  }
  const auto files = write_files(fbb, weights.files);
  const auto tensors = write_tensors(fbb, weights.tensors);
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::OtherName>>> other_vector;
  if (!others.empty()) other_vector = fbb.CreateVector(others);
  return schema::CreateWeights(fbb, files, tensors, other_vector);
}

std::uint32_t count_of_other_names(const schema::Weights& weights) {
  return weights.other_names() ? weights.other_names()->size() : 0;
}

void check_different(std::vector<std::string_view> names, const Path& path) {
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error(path, "names that are different", "'" + shortened(*twice) + "' twice");
}

std::vector<std::string_view> check_tensors(
    const Vectors::FilesRead& files, const Vectors::TensorsRead& tensors, const Path& path,
    const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::vector<std::string_view> file_names;  // readers open each
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    const Path file{&path, "files", i};
    check_text(*files.Get(i)->name(), {&file, "name"});
    if (const std::size_t size = files.Get(i)->name()->size(); size > max_tensors_name_size)
      throw Error({&file, "name"}, "at most " + std::to_string(max_tensors_name_size) + " bytes", std::to_string(size));
    file_names.push_back(files.Get(i)->name()->string_view());
  }
  check_different(std::move(file_names), {&path, "files"});
  std::vector<std::string_view> names;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const schema::Tensor& tensor = *tensors.Get(i);
    const Path place{&path, "tensors", i};
    check_text(*tensor.name(), {&place, "name"});
    names.push_back(tensor.name()->string_view());
    if (tensor.file() >= files.size())
      throw Error({&place, "file"}, "an index below " + std::to_string(files.size()), std::to_string(tensor.file()));
  }
  return names;
}

void check_weights(const schema::Weights& weights, const Path& path,
                   const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::vector<std::string_view> names = check_tensors(*weights.files(), *weights.tensors(), path, check_text);
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    const Path place{&path, "other_names", i};
    check_text(*other.name(), {&place, "name"});
    names.push_back(other.name()->string_view());
    if (other.tensor() >= weights.tensors()->size())
      throw Error({&place, "tensor"}, "an index below " + std::to_string(weights.tensors()->size()),
                  std::to_string(other.tensor()));
  }
  check_different(std::move(names), {&path, "tensors"});
}

std::vector<Weights::File> read_files(const Vectors::FilesRead& files) {
  std::vector<Weights::File> read;
  for (const schema::TensorFile* file : files)
    read.push_back({file->name()->str(), file->size(), stored(*file->content())});
  return read;
}

std::vector<Weights::Tensor> read_tensors(const Vectors::TensorsRead& tensors) {
  std::vector<Weights::Tensor> read;
  for (const schema::Tensor* tensor : tensors)
    read.push_back({tensor->name()->str(), tensor->file(), tensor->size(), stored(*tensor->digest())});
  return read;
}

Weights read_weights(const schema::Weights& weights) {
  Weights read{read_files(*weights.files()), read_tensors(*weights.tensors())};
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    read.other_names.push_back({other.name()->str(), other.tensor()});
  }
  return read;
}

}  // namespace jaxexp::wire

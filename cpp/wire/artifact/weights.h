// The weights of a trailer: which tensors, in files beside the artifact, are the values of its first arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trailer_generated.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"

namespace jaxexp::wire {

/// Readers show it with each tensor. File systems have names of up to 255 bytes.
inline constexpr std::size_t max_tensors_name_size = 1024;

struct Weights {
  struct File {
    std::string name;
    std::uint64_t size;
    Digest content;
  };
  struct Tensor {
    std::string name;
    std::uint32_t file;  // index into `files`
    std::uint64_t size;
    Digest digest;
  };

  struct OtherName {
    std::string name;
    std::uint32_t tensor;  // index into `tensors`
  };

  std::vector<File> files;
  std::vector<Tensor> tensors;
  std::vector<OtherName> other_names = {};

  /// About how many bytes they take in a trailer.
  std::size_t size() const;
};

/// Files of tensors, and tensors in them, as a trailer has them.
struct Vectors {
  using FilesRead = flatbuffers::Vector<flatbuffers::Offset<schema::TensorFile>>;
  using TensorsRead = flatbuffers::Vector<flatbuffers::Offset<schema::Tensor>>;
  using Files = flatbuffers::Offset<FilesRead>;
  using Tensors = flatbuffers::Offset<TensorsRead>;
};

Vectors::Files write_files(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::File>& files);
Vectors::Tensors write_tensors(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::Tensor>& tensors);
std::vector<Weights::File> read_files(const Vectors::FilesRead& files);
std::vector<Weights::Tensor> read_tensors(const Vectors::TensorsRead& tensors);

/// Checks that files have different names, and that each tensor is in one of them. Returns the tensors' names.
/// `check_text` is called for each text. Throws Error.
std::vector<std::string_view> check_tensors(
    const Vectors::FilesRead& files, const Vectors::TensorsRead& tensors, const Path& path,
    const std::function<void(const flatbuffers::String&, const Path&)>& check_text);

/// Throws Error where two of the names are equal.
void check_different(std::vector<std::string_view> names, const Path& path);

flatbuffers::Offset<schema::Weights> write_weights(flatbuffers::FlatBufferBuilder& fbb, const Weights& weights);

/// Checks what the schema cannot say. `check_text` is called for each text. Throws Error.
void check_weights(const schema::Weights& weights, const Path& path,
                   const std::function<void(const flatbuffers::String&, const Path&)>& check_text);

std::uint32_t count_of_other_names(const schema::Weights& weights);

Weights read_weights(const schema::Weights& weights);

}  // namespace jaxexp::wire

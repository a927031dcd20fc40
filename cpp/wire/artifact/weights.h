// The weights of a trailer: which tensors, in files beside the artifact, are the values of its first arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trailer_generated.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"

namespace jaxexp::wire {

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

flatbuffers::Offset<schema::Weights> write_weights(flatbuffers::FlatBufferBuilder& fbb, const Weights& weights);

/// Checks what the schema cannot say. `check_text` is called for each text. Throws Error.
void check_weights(const schema::Weights& weights, const Path& path,
                   const std::function<void(const flatbuffers::String&, const Path&)>& check_text);

std::uint32_t count_of_other_names(const schema::Weights& weights);

Weights read_weights(const schema::Weights& weights);

}  // namespace jaxexp::wire

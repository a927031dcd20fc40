// The weights in an archive: files of tensors, and where each tensor is, by its content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace jaxexp::wire {

/// The name in the ZIP file of the file of weights with this number.
std::string weights_name(std::size_t number);

/// What the part of an index says that is about weights, after a check: files lie one behind the other and in front of
/// `end`, and each tensor in one of them. Throws Error.
const schema::ArchiveWeights& check_archive_weights(std::span<const std::uint8_t> bytes, std::uint64_t end);

std::span<const schema::WeightsFile> files_of(const schema::ArchiveWeights& weights);

const schema::WeightsTensor* find_tensor(const schema::ArchiveWeights& weights, const Digest& digest);

class ArchiveWeights {
 public:
  struct Tensor {
    Digest digest;
    std::uint64_t position, size;
  };

  void take(const schema::ArchiveWeights& weights);
  /// Adds a file behind the others. Throws std::invalid_argument where it is not there, or a tensor is not in it.
  void add(const schema::WeightsFile& file, const std::vector<Tensor>& tensors);

  bool empty() const { return files_.empty(); }
  const std::vector<schema::WeightsFile>& files() const { return files_; }
  std::optional<Tensor> find(const Digest& digest) const;
  flatbuffers::DetachedBuffer write() const;

 private:
  std::vector<schema::WeightsFile> files_;
  std::map<Digest, Tensor> tensors_;
};

/// The files, from a position on, as members of the ZIP file.
void append_zip_members(std::vector<ZipMember>& members, std::span<const schema::WeightsFile> files,
                        std::uint64_t begin);

}  // namespace jaxexp::wire

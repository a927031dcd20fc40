// Weights are looked up by their digests, in an array that is in the order of these.
#include "wire/archive/weights.h"

#include <algorithm>
#include <stdexcept>

#include "wire/archive/limits.h"
#include "wire/artifact/layout.h"
#include "wire/base/error.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

const Path index_path{nullptr, "index"};
const Path weights_path{&index_path, "weights"};

bool is_within(const schema::WeightsFile& file, std::uint64_t position, std::uint64_t size) {
  return position >= file.position() && position - file.position() <= file.size() &&
         size <= file.size() - (position - file.position());
}

/// FlatBuffers' verifier does not look at this.
template <class Struct>
void check_alignment(const flatbuffers::Vector<const Struct*>& structs) {
  if (structs.size() != 0 && reinterpret_cast<std::uintptr_t>(structs.Data()) % alignof(Struct) != 0)
    throw Error(weights_path, "vectors at multiples of eight bytes", "one elsewhere");
}

void check_file(const schema::WeightsFile& file, std::uint32_t number, std::uint64_t previous_end, std::uint64_t end) {
  const Path path{&weights_path, "files", number};
  if (file.position() % member_alignment != 0 || file.position() > end || file.size() > end - file.position())
    throw Error(path, "bytes in front of the index, at a multiple of " + std::to_string(member_alignment),
                std::to_string(file.size()) + " at " + std::to_string(file.position()));
  const std::size_t header = file.header();
  if (header > file.position() || file.position() - header < previous_end ||
      zip_local_header(weights_name(number), file.size(), 0, file.position() - header).size() != header)
    throw Error(path, "a ZIP header in front of the bytes, behind the file before it",
                std::to_string(header) + " bytes at " + std::to_string(file.position() - header));
}

}  // namespace

std::string weights_name(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(weights_folder) + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits +
         ".safetensors";
}

const schema::ArchiveWeights& check_archive_weights(std::span<const std::uint8_t> bytes, std::uint64_t end) {
  flatbuffers::Verifier::Options options;
  options.max_depth = 2;
  options.max_tables = 1;
  options.check_alignment = true;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), options);
  if (bytes.size() < FLATBUFFERS_MIN_BUFFER_SIZE || bytes.size() >= max_buffer_size ||
      !verifier.VerifyBuffer<schema::ArchiveWeights>(nullptr))
    throw Error(weights_path, "a table inside the index", "one that reaches beyond its end");
  const auto& weights = *flatbuffers::GetRoot<schema::ArchiveWeights>(bytes.data());
  check_alignment(*weights.files());
  check_alignment(*weights.tensors());
  std::uint64_t previous_end = 0;
  for (std::uint32_t i = 0; i < weights.files()->size(); ++i) {
    const schema::WeightsFile& file = *weights.files()->Get(i);
    check_file(file, i, previous_end, end);
    previous_end = file.position() + file.size();
  }
  std::uint64_t left = end;
  for (std::uint32_t i = 0; i < weights.tensors()->size(); ++i) {
    const schema::WeightsTensor& tensor = *weights.tensors()->Get(i);
    const Path path{&weights_path, "tensors", i};
    const auto behind =
        std::partition_point(weights.files()->begin(), weights.files()->end(),
                             [&](const schema::WeightsFile* file) { return file->position() <= tensor.position(); });
    if (behind == weights.files()->begin() || !is_within(**(behind - 1), tensor.position(), tensor.size()))
      throw Error(path, "bytes of a file of weights",
                  std::to_string(tensor.size()) + " at " + std::to_string(tensor.position()));
    if (tensor.size() > left) throw Error(path, "tensors that share no bytes", "tensors that overlap");
    left -= tensor.size();
    if (i != 0 && stored(weights.tensors()->Get(i - 1)->digest()) >= stored(tensor.digest()))
      throw Error(path, "digests in ascending order", "digests out of order");
  }
  return weights;
}

std::span<const schema::WeightsFile> files_of(const schema::ArchiveWeights& weights) {
  const auto& files = *weights.files();
  return files.size() == 0 ? std::span<const schema::WeightsFile>() : std::span(files.Get(0), files.size());
}

void append_zip_members(std::vector<ZipMember>& members, std::span<const schema::WeightsFile> files,
                        std::uint64_t begin) {
  for (std::size_t i = 0; i < files.size(); ++i)
    if (const std::uint64_t at = files[i].position() - files[i].header(); at >= begin)
      members.push_back({weights_name(i), files[i].size(), files[i].crc32(), at});
}

const schema::WeightsTensor* find_tensor(const schema::ArchiveWeights& weights, const Digest& digest) {
  const auto& all = *weights.tensors();
  const auto found = std::partition_point(
      all.begin(), all.end(), [&](const schema::WeightsTensor* tensor) { return stored(tensor->digest()) < digest; });
  return found != all.end() && stored((*found)->digest()) == digest ? *found : nullptr;
}

void ArchiveWeights::take(const schema::ArchiveWeights& weights) {
  for (const schema::WeightsFile& file : files_of(weights)) files_.push_back(file);
  for (const schema::WeightsTensor* tensor : *weights.tensors()) {
    const Digest digest = stored(tensor->digest());
    tensors_.emplace_hint(tensors_.end(), digest, Tensor{digest, tensor->position(), tensor->size()});
  }
}

void ArchiveWeights::add(const schema::WeightsFile& file, const std::vector<Tensor>& tensors) {
  if (!files_.empty() && file.position() < files_.back().position() + files_.back().size())
    throw std::invalid_argument("files of weights lie one behind the other");
  for (const Tensor& tensor : tensors)
    if (!is_within(file, tensor.position, tensor.size)) throw std::invalid_argument("a tensor lies in its file");
  files_.push_back(file);
  for (const Tensor& tensor : tensors) tensors_.try_emplace(tensor.digest, tensor);
}

std::optional<ArchiveWeights::Tensor> ArchiveWeights::find(const Digest& digest) const {
  const auto found = tensors_.find(digest);
  return found == tensors_.end() ? std::nullopt : std::optional(found->second);
}

flatbuffers::DetachedBuffer ArchiveWeights::write() const {
  flatbuffers::FlatBufferBuilder fbb(1 << 12);
  std::vector<schema::WeightsTensor> tensors;
  for (const auto& [digest, tensor] : tensors_) tensors.emplace_back(to_schema(digest), tensor.position, tensor.size);
  const auto file_vector = fbb.CreateVectorOfStructs(files_);
  const auto tensor_vector = fbb.CreateVectorOfStructs(tensors);
  fbb.Finish(schema::CreateArchiveWeights(fbb, file_vector, tensor_vector));
  return fbb.Release();
}

}  // namespace jaxexp::wire

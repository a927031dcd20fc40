// What jaxexp keeps behind an artifact: digests, and what the format has no place for. schema/trailer.fbs has the
// layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exported_generated.h"
#include "trailer_generated.h"
#include "wire/artifact/layout.h"
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

inline constexpr std::uint32_t max_case_rank = 64;

/// How many bytes recordings may have in a report, which shows them with each case: so many, and some for each byte of
/// the trailer.
inline constexpr std::size_t min_recordings = 1 << 20, recordings_per_byte = 16;

struct Cases {
  struct Data {
    std::string bytes;
  };
  struct Drawn {
    std::uint8_t distribution;
    std::uint64_t seed;
    double first, second;
  };
  struct Tolerance {
    double relative, absolute;
  };
  /// Has one of `data`, `tensor` and `drawn`.
  struct Value {
    std::uint8_t dtype;
    std::vector<std::uint64_t> shape;
    std::optional<Data> data;
    std::optional<std::uint32_t> tensor;  // index into `tensors`
    std::optional<Drawn> drawn;
    std::optional<Tolerance> tolerance;
  };
  struct Case {
    std::string name;
    std::uint32_t order;
    std::vector<Value> arguments, results;
    std::uint32_t recording;  // index into `recordings`
    std::optional<Value> trace;
  };
  using Recording = std::vector<std::pair<std::string, std::string>>;

  std::vector<Case> cases;
  std::vector<Recording> recordings;
  std::vector<Weights::File> files;
  std::vector<Weights::Tensor> tensors;

  /// About how many bytes they take in a trailer.
  std::size_t size() const;
};

flatbuffers::Offset<schema::Cases> write_cases(flatbuffers::FlatBufferBuilder& fbb, const Cases& cases);

/// Checks what the schema cannot say. `check_text` is called for each text, and `most_bytes` is how many bytes all
/// arrays may have together. Throws Error.
void check_cases(const schema::Cases& cases, const Path& path, std::size_t most_bytes,
                 const std::function<void(const flatbuffers::String&, const Path&)>& check_text);

/// Checks that cases fit the functions of an artifact, whose first arguments are `weights` weights. Throws Error.
void check_signatures(const schema::Cases& cases, const Path& path, const schema::Exported& root,
                      std::uint32_t weights);

Cases read_cases(const schema::Cases& cases);
std::vector<std::uint64_t> shape_of(const schema::CaseValue& value);

/// A function has a few; each is an inequality that JAX has to reason with.
inline constexpr std::size_t max_constraints = 1024;

/// Each is code that somebody compiles.
inline constexpr std::size_t max_sizes = 64;

/// Sizes of dimension variables, by ascending name.
using Sizes = std::vector<std::pair<std::string, std::int64_t>>;

class Trailer {
 public:
  /// Checks everything but the modules' digests. Nothing is returned where the artifact has no trailer. An image is
  /// refused as an artifact, and an artifact where an image is wanted. Throws Error.
  static std::optional<Trailer> read(std::span<const std::uint8_t> buffer, bool image = false);

  /// The bytes of the Exported; no offset in it leads out of them.
  std::span<const std::uint8_t> artifact() const { return artifact_; }
  /// What is in front of the first module.
  std::span<const std::uint8_t> metadata() const { return artifact_.first(metadata_size_); }
  /// Of the metadata as they are in the artifact with its modules.
  const Digest& metadata_digest() const { return metadata_digest_; }
  std::span<const std::uint8_t> content_bytes() const { return content_bytes_; }
  /// How many bytes the artifact has; of an image, those that it has with its modules.
  std::size_t whole_size() const;
  const schema::Trailer& content() const { return *content_; }
  std::vector<Sizes> sizes() const;
  std::vector<std::string_view> padded() const;
  const schema::FunctionNotes& notes(std::size_t order) const {
    return *content_->functions()->Get(static_cast<std::uint32_t>(order));
  }

  /// Checks that modules are where they were when the trailer was written, and that its notes fit the functions.
  /// The artifact has to be verified and checked. Throws Error.
  void check(const schema::Exported& root) const;

  Digest module_digest(std::size_t order) const;
  /// The digest in front of the last mark of the artifact, with its modules in it. It covers all that the artifact is.
  Digest artifact_digest() const;

  /// Throws Error where a digest is not that of the module that was written.
  void check_module(const Digest& found, std::size_t order) const;

 private:
  std::span<const std::uint8_t> artifact_;
  std::span<const std::uint8_t> content_bytes_;
  std::size_t metadata_size_ = 0;
  Digest metadata_digest_{};
  bool image_ = false;
  const schema::Trailer* content_ = nullptr;
};

/// What a trailer is made from, besides digests.
struct Notes {
  struct Function {
    std::vector<std::uint32_t> weak_arguments, weak_results;
  };

  std::string writer;
  std::vector<std::pair<std::string, std::string>> metadata;  // by ascending key; values are JSON
  std::optional<Weights> weights = {};
  std::vector<Sizes> sizes = {};
  std::vector<std::string> constraints = {};
  std::vector<Function> functions = {};
  std::optional<Cases> cases = {};
  std::vector<std::string> padded = {};  // ascending
};

/// A trailer that is laid out, so that its size is known, before the digests are.
class TrailerWriter {
 public:
  /// `modules` are those of the functions, in their order. Throws TooLarge.
  TrailerWriter(const Notes& notes, std::span<const std::span<const std::uint8_t>> modules);

  std::size_t size() const { return fbb_.GetSize() + footer_size; }

  void set_module_digest(std::size_t order, const Digest& digest);

  /// Writes `size()` bytes and returns the place behind them. `metadata` are the bytes in front of the first module,
  /// the head included.
  std::uint8_t* finish(std::span<const std::uint8_t> metadata, std::uint8_t* target) const;

  static constexpr std::size_t footer_size = 2 * sizeof(Digest) + 2 * sizeof(std::uint32_t) + mark.size();

 private:
  flatbuffers::FlatBufferBuilder fbb_;
};

/// Writes the bytes of a trailer that is laid out, and the footer, and returns the place behind them. An image has the
/// digest of the metadata as they are where the modules are, and another mark.
std::uint8_t* write_trailer(std::span<const std::uint8_t> metadata, std::span<const std::uint8_t> content,
                            const Digest* image_of, std::uint8_t* target);

}  // namespace jaxexp::wire

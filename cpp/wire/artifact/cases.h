// The cases of a trailer: calls of the function and its VJPs that were recorded, to be made again and compared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exported_generated.h"
#include "trailer_generated.h"
#include "wire/artifact/weights.h"
#include "wire/base/error.h"

namespace jaxexp::wire {

inline constexpr std::uint32_t max_case_rank = 64;

/// How many bytes recordings may have in a report, which shows them with each case: so many, and some for each byte of
/// the trailer.
inline constexpr std::size_t min_recordings = 1 << 20, recordings_per_byte = 16;

struct Cases {
  /// The elements of an array.
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

}  // namespace jaxexp::wire

// The header of a file of tensors (safetensors): which tensors it has and where. Everything is checked before it is
// believed; docs/formats/weights.md says what is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jaxexp::wire {

inline constexpr std::size_t max_header_size = std::size_t{16} << 20;
inline constexpr std::size_t max_index_size = std::size_t{32} << 20;
inline constexpr std::size_t max_tensor_rank = 64;

struct TensorDtype {
  std::string_view name;
  unsigned bits;  // of an element
};

/// Those that the format has.
std::span<const TensorDtype> tensor_dtypes();

struct Tensor {
  std::string name;
  std::string_view dtype;  // as the format names it, such as "F32"
  std::vector<std::int64_t> shape;
  std::uint64_t start, end;  // in bytes, from the end of the header

  /// As in "F32[2,3]".
  std::string str() const;
};

struct Header {
  /// In the order of their positions.
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  /// Of the header with its length, which is where the tensors begin.
  std::size_t size;

  /// What the writer says of the content of the file, if that was jaxexp.
  std::optional<std::string> content() const;
};

/// How many bytes a tensor takes in a file; nothing where it ends inside a byte, or there can be no such tensor.
/// `dtype` is one of the format's.
std::optional<std::uint64_t> size_of_tensor(std::string_view dtype, std::span<const std::int64_t> shape);

/// How many bytes the header takes with its length, given the first 8 bytes of a file of this size. Throws
/// TensorsError.
std::size_t size_of_header(std::span<const std::uint8_t> file, std::uint64_t size);

/// Reads and checks the header of a file of this size, given its bytes up to the header's end or more. Throws
/// TensorsError.
Header read_header(std::span<const std::uint8_t> file, std::uint64_t size);

using WeightMap = std::vector<std::pair<std::string, std::string>>;

/// As an index (`.safetensors.index.json`) has them. Throws TensorsError.
WeightMap read_weight_map(std::span<const std::uint8_t> index);

}  // namespace jaxexp::wire

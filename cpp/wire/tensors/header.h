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
  /// What the writer says of the content of the file, if that was jaxexp.
  std::optional<std::string> content;
  /// Of the header with its length, which is where the tensors begin.
  std::size_t size;
};

/// How many bytes a tensor takes in a file; nothing where it ends inside a byte, or there can be no such tensor.
/// `dtype` is one of the format's.
std::optional<std::uint64_t> size_of_tensor(std::string_view dtype, std::span<const std::int64_t> shape);

/// Reads and checks the header of a file, given the bytes of the file, of which only the header is looked at. Throws
/// Error, whose path is the name of a tensor, or empty.
Header read_header(std::span<const std::uint8_t> file);

/// The tensors' names and their files' as an index (`.safetensors.index.json`) has them. Throws Error.
std::vector<std::pair<std::string, std::string>> read_weight_map(std::span<const std::uint8_t> index);

}  // namespace jaxexp::wire

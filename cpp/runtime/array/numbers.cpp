// Parts of an array are put together in host memory.
#include "runtime/array/numbers.h"

#include <cstring>
#include <limits>
#include <set>

namespace jaxexp::runtime {
namespace {

/// Copies a block without gaps into a larger array, row by row.
void place(const Part& part, const std::byte* from, const Shape& strides, std::size_t bytes, std::byte* to) {
  for (std::size_t d = 0; d < part.start.size(); ++d) to += part.start[d] * strides[d];
  if (part.shape.empty()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t inner = part.shape.size() - 1;
  const std::size_t row = static_cast<std::size_t>(part.shape[inner]) * bytes;
  Shape at(inner, 0);
  for (std::size_t rows = count({part.shape.begin(), part.shape.end() - 1}); rows > 0; --rows, from += row) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < inner; ++d) offset += at[d] * strides[d];
    std::memcpy(to + offset, from, row);
    for (std::size_t d = inner; d-- > 0 && ++at[d] == part.shape[d];) at[d] = 0;
  }
}

}  // namespace

std::size_t count(const Shape& shape, std::size_t bytes) {
  std::size_t product = bytes;
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  for (const std::int64_t size : shape)
    if (size == 0) return 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || product > most / static_cast<std::size_t>(size))
      throw RunError(RunError::Reason::argument, "there can be no array of shape " + description(shape));
    product *= static_cast<std::size_t>(size);
  }
  return product;
}

std::size_t size_bytes(const Numbers& numbers) { return count(numbers.shape, numbers.type->bytes); }

Shape row_major_strides(const Shape& shape, std::size_t bytes) {
  Shape strides(shape.size());
  auto stride = static_cast<std::int64_t>(bytes);
  for (std::size_t d = shape.size(); d-- > 0; stride *= shape[d]) strides[d] = stride;
  return strides;
}

std::string description(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string description(const Numbers& numbers) { return std::string(numbers.type->name) + description(numbers.shape); }

void copy_to_host(const Numbers& numbers, void* target) {
  const std::size_t size = size_bytes(numbers);
  if (numbers.parts.empty()) {
    if (size > 0) std::memcpy(target, numbers.data, size);
    return;
  }
  if (numbers.parts.front().shape == numbers.shape) {
    numbers.parts.front().buffer->copy_to(target, size);
    return;
  }
  const Shape strides = row_major_strides(numbers.shape, numbers.type->bytes);
  std::set<Shape> seen;
  for (const Part& part : numbers.parts) {
    if (!seen.insert(part.start).second) continue;
    const std::size_t part_size = count(part.shape, numbers.type->bytes);
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(part_size);
    part.buffer->copy_to(bytes.get(), part_size);
    if (part_size > 0) place(part, bytes.get(), strides, numbers.type->bytes, static_cast<std::byte*>(target));
  }
}

Numbers on_host(const Numbers& numbers) {
  const auto bytes = std::shared_ptr<std::byte[]>(new std::byte[size_bytes(numbers)]);
  copy_to_host(numbers, bytes.get());
  return {numbers.type, numbers.shape, bytes.get(), bytes, {}};
}

}  // namespace jaxexp::runtime

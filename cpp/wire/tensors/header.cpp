// Tensors lie one behind the other and fill the file: no header can make two names share bytes, or hide some.
#include "wire/tensors/header.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "wire/base/error.h"
#include "wire/tensors/json.h"

namespace jaxexp::wire {
namespace {

struct Dtype {
  std::string_view name;
  unsigned bits;
};

constexpr Dtype dtypes[] = {
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},      {"U16", 16},        {"I16", 16},    {"U32", 32},
    {"I32", 32},    {"U64", 64},        {"I64", 64},    {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F16", 16},
    {"BF16", 16},   {"F32", 32},        {"F64", 64},    {"C64", 64},
};

constexpr std::size_t length_size = sizeof(std::uint64_t);

/// A tensor's name may be as long as the header.
[[noreturn]] void refuse(std::string_view tensor, std::string expected, std::string found) {
  const std::string name = shortened(tensor, 300);
  throw Error({nullptr, name}, std::move(expected), std::move(found));
}

std::string bytes(std::uint64_t count) { return std::to_string(count) + " bytes"; }

const Dtype& dtype_of(const Tensor& tensor, const std::string& name) {
  const auto* const found = std::ranges::find(dtypes, std::string_view(name), &Dtype::name);
  if (found == std::end(dtypes)) refuse(tensor.name, "a dtype of the format", "'" + escaped(shortened(name)) + "'");
  return *found;
}

std::vector<std::int64_t> naturals(Json& json, std::string_view tensor, std::size_t most, const char* expected) {
  std::vector<std::int64_t> numbers;
  json.array([&] {
    if (numbers.size() == most) refuse(tensor, expected, "more");
    numbers.push_back(static_cast<std::int64_t>(json.natural()));
  });
  return numbers;
}

Tensor read_tensor(Json& json, const std::string& name) {
  Tensor tensor{name, {}, {}, 0, 0};
  bool has_dtype = false, has_shape = false, has_offsets = false;
  json.object([&](const std::string& key) {
    if (key == "dtype") {
      tensor.dtype = dtype_of(tensor, json.string()).name;
      has_dtype = true;
    } else if (key == "shape") {
      tensor.shape = naturals(json, name, max_tensor_rank, "a shape of at most 64 natural numbers");
      has_shape = true;
    } else if (key == "data_offsets") {
      const auto offsets = naturals(json, name, 2, "data_offsets that are two natural numbers");
      if (offsets.size() != 2) refuse(name, "data_offsets that are two natural numbers", "fewer");
      tensor.start = static_cast<std::uint64_t>(offsets[0]);
      tensor.end = static_cast<std::uint64_t>(offsets[1]);
      has_offsets = true;
    } else {
      refuse(name, "dtype, shape and data_offsets", "'" + escaped(shortened(key)) + "'");
    }
  });
  if (!has_dtype || !has_shape || !has_offsets) refuse(name, "dtype, shape and data_offsets", "not all of them");
  const auto size = size_of_tensor(tensor.dtype, tensor.shape);
  if (!size) refuse(name, "a shape that fills whole bytes, of which there can be so many", tensor.str());
  if (tensor.end < tensor.start || tensor.end - tensor.start != *size)
    refuse(name, bytes(*size) + " for " + tensor.str(),
           "data_offsets " + std::to_string(tensor.start) + " and " + std::to_string(tensor.end));
  return tensor;
}

std::optional<std::string> read_metadata(Json& json) {
  std::optional<std::string> content;
  json.object([&](const std::string& key) {
    std::string value = json.string();
    if (key == "content") content = std::move(value);
  });
  return content;
}

void check_places(std::vector<Tensor>& tensors, std::uint64_t size, std::uint64_t header_size) {
  std::ranges::sort(tensors, {}, [](const Tensor& tensor) { return std::pair(tensor.start, tensor.end); });
  std::uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.start != end)
      refuse(tensor.name, "that it begins at " + std::to_string(end) + ", where the one before it ends",
             std::to_string(tensor.start));
    end = tensor.end;
  }
  if (size - header_size != end) refuse({}, bytes(header_size + end) + ", as its header says", bytes(size));
}

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string Tensor::str() const {
  std::string text(dtype);
  text += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) (text += i > 0 ? "," : "") += std::to_string(shape[i]);
  return text + ']';
}

std::optional<std::uint64_t> size_of_tensor(std::string_view dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bits = std::ranges::find(dtypes, dtype, &Dtype::name)->bits;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || bits > std::numeric_limits<std::uint64_t>::max() / static_cast<std::uint64_t>(size))
      return std::nullopt;
    bits *= static_cast<std::uint64_t>(size);
  }
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

Header read_header(std::span<const std::uint8_t> file) {
  if (file.size() < length_size)
    refuse({}, "a safetensors file, which begins with the length of its header", bytes(file.size()));
  std::uint64_t length = 0;
  for (std::size_t i = length_size; i-- > 0;) length = length << 8 | file[i];
  if (length > max_header_size) refuse({}, "a header of at most " + bytes(max_header_size), "one of " + bytes(length));
  if (length > file.size() - length_size)
    refuse({}, "a header of " + bytes(length), bytes(file.size() - length_size) + " up to the end of the file");
  Header header{{}, {}, length_size + static_cast<std::size_t>(length)};
  const std::string_view text = text_of(file.subspan(length_size, static_cast<std::size_t>(length)));
  if (!text.starts_with('{'))
    refuse({}, "a header that is a JSON object", "one that begins with '" + escaped(text.substr(0, 8)) + "'");
  Json json(text, "a header");
  json.object([&](const std::string& name) {
    if (name == "__metadata__")
      header.content = read_metadata(json);
    else
      header.tensors.push_back(read_tensor(json, name));
  });
  json.end();
  check_places(header.tensors, file.size(), header.size);
  return header;
}

std::vector<std::pair<std::string, std::string>> read_weight_map(std::span<const std::uint8_t> index) {
  if (index.size() > max_index_size) refuse({}, "an index of at most " + bytes(max_index_size), bytes(index.size()));
  std::vector<std::pair<std::string, std::string>> map;
  bool is_there = false;
  Json json(text_of(index), "an index");
  json.object([&](const std::string& key) {
    if (key != "weight_map") return json.skip();
    is_there = true;
    json.object([&](const std::string& name) { map.emplace_back(name, json.string()); });
  });
  json.end();
  if (!is_there) refuse({}, "a weight_map that maps tensors to files", "none");
  return map;
}

}  // namespace jaxexp::wire

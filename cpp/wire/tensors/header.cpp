// Tensors lie one behind the other and fill the file: no header can make two names share bytes, or hide some.
#include "wire/tensors/header.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "wire/base/error.h"
#include "wire/tensors/json.h"

namespace jaxexp::wire {
namespace {

constexpr TensorDtype dtypes[] = {
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},      {"U16", 16},        {"I16", 16},    {"U32", 32},
    {"I32", 32},    {"U64", 64},        {"I64", 64},    {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F8_E4M3", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F16", 16},
    {"BF16", 16},   {"F32", 32},        {"F64", 64},    {"C64", 64},
};

constexpr std::size_t length_size = sizeof(std::uint64_t);

/// A tensor's name may be as long as the header.
[[noreturn]] void refuse(std::string_view tensor, std::string expected, std::string found) {
  const std::string name = shortened(tensor, 300);
  throw TensorsError({nullptr, name}, std::move(expected), std::move(found));
}

template <class Number>
std::string grouped(Number number) {
  std::string text = std::to_string(number);
  const std::size_t first = text.starts_with('-') ? 4 : 3;
  for (std::size_t at = text.size(); at > first;) text.insert(at -= 3, 1, ',');
  return text;
}

template <class Number>
std::string bytes(Number count) {
  return grouped(count) + " bytes";
}

std::string_view dtype_of(const std::string& tensor, const JsonValue& value) {
  const auto* const found = std::ranges::find(dtypes, std::string_view(value.text), &TensorDtype::name);
  if (value.kind == JsonValue::Kind::text && found != std::end(dtypes)) return found->name;
  std::string names;
  for (const TensorDtype& dtype : dtypes) (names += names.empty() ? "" : ", ") += dtype.name;
  refuse(tensor, "a dtype that is one of " + names, value.str());
}

/// How many bits a tensor has; nothing where these are too many to be counted.
std::optional<std::uint64_t> bits_of(std::string_view dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bits = std::ranges::find(dtypes, dtype, &TensorDtype::name)->bits;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || bits > std::numeric_limits<std::uint64_t>::max() / static_cast<std::uint64_t>(size))
      return std::nullopt;
    bits *= static_cast<std::uint64_t>(size);
  }
  return bits;
}

class Entries {
 public:
  explicit Entries(Header& header) : header_(header) {}

  void take(const JsonPath& path, JsonValue value) {
    if (path.empty()) return;
    const std::string& name = path.front();
    if (name == "__metadata__")
      take_metadata(path, std::move(value));
    else if (path.size() == 1 && value.kind == Kind::object)
      tensor_ = {name, {}, {}, 0, 0}, has_shape_ = false, offsets_.reset();
    else if (path.size() == 1 && value.kind == Kind::end)
      add();
    else if (path.size() == 1)
      refuse(name, fields, value.str());
    else if (path[1] == "dtype")
      tensor_.dtype = dtype_of(name, value);
    else if (path[1] == "shape")
      has_shape_ = true,
      take_number(path, value, tensor_.shape, max_tensor_rank, "a shape of at most 64 natural numbers");
    else if (path[1] == "data_offsets")
      take_number(path, value, offsets_ ? *offsets_ : offsets_.emplace(), 2, two_numbers);
    else
      refuse(name, fields, "'" + escaped(shortened(path[1])) + "'");
  }

 private:
  using Kind = JsonValue::Kind;

  static constexpr const char *fields = "dtype, shape and data_offsets",
                              *two_numbers = "data_offsets that are two natural numbers";

  void take_metadata(const JsonPath& path, JsonValue value) {
    if (value.kind == Kind::end) return;
    if (value.kind != (path.size() == 1 ? Kind::object : Kind::text))
      refuse({}, "a __metadata__ that maps text to text", value.str());
    if (path.size() == 2) header_.metadata.emplace_back(path[1], std::move(value.text));
  }

  /// An array, one of its elements, or its end.
  static void take_number(const JsonPath& path, const JsonValue& value, std::vector<std::int64_t>& numbers,
                          std::size_t most, const char* expected) {
    if (value.kind == Kind::end) return;
    if (value.kind != (path.size() == 2 ? Kind::array : Kind::natural)) refuse(path.front(), expected, value.str());
    if (path.size() == 2) return;
    if (numbers.size() == most) refuse(path.front(), expected, "more");
    numbers.push_back(value.natural);
  }

  void add() {
    if (tensor_.dtype.empty() || !has_shape_ || !offsets_) refuse(tensor_.name, fields, "not all of them");
    if (offsets_->size() != 2) refuse(tensor_.name, two_numbers, "fewer");
    const std::int64_t start = (*offsets_)[0], end = (*offsets_)[1];
    const auto bits = bits_of(tensor_.dtype, tensor_.shape);
    if (bits && *bits % 8 != 0) refuse(tensor_.name, "a shape that fills whole bytes", tensor_.str());
    if (!bits || end < start || static_cast<std::uint64_t>(end - start) != *bits / 8)
      refuse(tensor_.name, (bits ? bytes(*bits / 8) : "more bytes than files have") + " for " + tensor_.str(),
             bytes(end - start) + " between its data_offsets");
    tensor_.start = static_cast<std::uint64_t>(start);
    tensor_.end = static_cast<std::uint64_t>(end);
    header_.tensors.push_back(std::move(tensor_));
  }

  Header& header_;
  Tensor tensor_{};
  bool has_shape_ = false;
  std::optional<std::vector<std::int64_t>> offsets_;
};

void check_places(std::vector<Tensor>& tensors, std::uint64_t size, std::uint64_t header_size) {
  std::ranges::stable_sort(tensors, {}, [](const Tensor& tensor) { return std::pair(tensor.start, tensor.end); });
  std::uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.start != end)
      refuse(tensor.name, "that it begins at " + grouped(end) + ", where the one before it ends",
             grouped(tensor.start));
    end = tensor.end;
  }
  if (size - header_size != end) refuse({}, bytes(header_size + end) + ", as its header says", bytes(size));
}

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::span<const TensorDtype> tensor_dtypes() { return dtypes; }

std::string Tensor::str() const {
  std::string text(dtype);
  text += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) (text += i > 0 ? "," : "") += std::to_string(shape[i]);
  return text + ']';
}

std::optional<std::string> Header::content() const {
  const auto found = std::ranges::find(metadata, "content", &std::pair<std::string, std::string>::first);
  return found == metadata.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::uint64_t> size_of_tensor(std::string_view dtype, std::span<const std::int64_t> shape) {
  const auto bits = bits_of(dtype, shape);
  return bits && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

std::size_t size_of_header(std::span<const std::uint8_t> file, std::uint64_t size) {
  if (file.size() < length_size)
    refuse({}, "a safetensors file, which begins with the length of its header", bytes(file.size()));
  std::uint64_t length = 0;
  for (std::size_t i = length_size; i-- > 0;) length = length << 8 | file[i];
  if (length > max_header_size) refuse({}, "a header of at most " + bytes(max_header_size), "one of " + bytes(length));
  if (length > size - length_size)
    refuse({}, "a header of " + bytes(length), bytes(size - length_size) + " up to the end of the file");
  return length_size + static_cast<std::size_t>(length);
}

Header read_header(std::span<const std::uint8_t> file, std::uint64_t size) {
  Header header{{}, {}, size_of_header(file, size)};
  if (header.size > file.size()) throw std::invalid_argument("a header has to be there as a whole");
  const std::string_view text = text_of(file.first(header.size).subspan(length_size));
  if (!text.starts_with('{'))
    refuse({}, "a header that is a JSON object", "one that begins with b'" + escaped(text.substr(0, 8)) + "'");
  Entries entries(header);
  read_json_object(text, "a header", "a name that is Unicode text", false,
                   [&](const JsonPath& path, JsonValue value) { entries.take(path, std::move(value)); });
  check_places(header.tensors, size, header.size);
  return header;
}

WeightMap read_weight_map(std::span<const std::uint8_t> index) {
  if (index.size() > max_index_size)
    refuse({}, "an index of at most " + bytes(max_index_size), "one of " + bytes(index.size()));
  constexpr const char* expected = "a weight_map that maps tensors to files";
  WeightMap map;
  bool is_there = false;
  read_json_object(text_of(index), "an index", "the name of a .safetensors file in the same folder", true,
                   [&](const JsonPath& path, JsonValue value) {
                     using Kind = JsonValue::Kind;
                     if (path.empty() || path.front() != "weight_map" || value.kind == Kind::end) return;
                     if (value.kind != (path.size() == 1 ? Kind::object : Kind::text))
                       refuse({}, expected, value.str());
                     if (path.size() == 2) map.emplace_back(path[1], std::move(value.text));
                     is_there = true;
                   });
  if (!is_there) refuse({}, expected, "none");
  return map;
}

}  // namespace jaxexp::wire

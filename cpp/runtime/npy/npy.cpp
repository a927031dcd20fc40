// The head of a .npy file is the literal of a dict in Python, of which NumPy writes one form.
#include "runtime/npy/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace jaxexp::npy {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr const char* too_short = "it ends before its last number";

struct Kind {
  std::string_view descr, dtype;
};

constexpr Kind kinds[] = {{"|b1", "bool"},      {"|i1", "int8"},       {"<i2", "int16"},   {"<i4", "int32"},
                          {"<i8", "int64"},     {"|u1", "uint8"},      {"<u2", "uint16"},  {"<u4", "uint32"},
                          {"<u8", "uint64"},    {"<f2", "float16"},    {"<f4", "float32"}, {"<f8", "float64"},
                          {"<c8", "complex64"}, {"<c16", "complex128"}};

/// Reads the dict, which has spaces only where NumPy writes them.
class Head {
 public:
  explicit Head(std::string_view text) : text_(text) {}

  Item item() {
    Item item;
    bool has_dtype = false, has_order = false, has_shape = false;
    expect("{");
    while (!skip("}")) {
      if (!has_dtype && skip("'descr': '"))
        has_dtype = true, dtype(item);
      else if (!has_order && skip("'fortran_order': "))
        has_order = true, item.is_fortran_order = skip("True") || (expect("False"), false);
      else if (!has_shape && skip("'shape': ("))
        has_shape = true, shape(item);
      else
        refuse();
      if (!skip(", ") && !text_.starts_with("}")) refuse();
    }
    if (!has_dtype || !has_order || !has_shape || text_.find_first_not_of(" \n") != text_.npos) refuse();
    return item;
  }

 private:
  void dtype(Item& item) {
    const std::size_t end = std::min(text_.find('\''), text_.size());
    const std::string_view descr = text_.substr(0, end);
    text_.remove_prefix(end);
    expect("'");
    const std::size_t digits = std::min(descr.find_first_of("0123456789"), descr.size());
    std::size_t bytes = 0;
    const char* const last = descr.data() + descr.size();
    const auto [rest, error] = std::from_chars(descr.data() + digits, last, bytes);
    const auto* const known = std::ranges::find(kinds, descr, &Kind::descr);
    // NumPy calls the dtypes of ml_dtypes V1, V2 or f1.
    const bool are_bytes = error == std::errc{} && rest == last && digits == 2 && bytes <= 16 &&
                           (descr[0] == '|' || descr[0] == '<') && descr[2] != '0' &&
                           (descr[1] == 'V' || (descr[1] == 'f' && bytes == 1));
    if ((known == std::end(kinds) && !are_bytes) || bytes == 0)
      throw NpyError("its dtype is '" + std::string(descr.substr(0, 20)) +
                     "', where a little-endian number is expected");
    item.item_bytes = bytes;
    if (known != std::end(kinds)) item.dtype = known->dtype;
  }

  void shape(Item& item) {
    while (!skip(")")) {
      std::int64_t size = 0;
      const auto [rest, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      const auto digits = rest - text_.data();
      if (error != std::errc{} || size < 0 || text_[0] == '-' || (text_[0] == '0' && digits > 1)) refuse();
      item.shape.push_back(size);
      text_.remove_prefix(static_cast<std::size_t>(digits));
      if (!skip(", ") && !skip(",") && !text_.starts_with(")")) refuse();
    }
  }

  bool skip(std::string_view token) {
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!skip(token)) refuse();
  }
  [[noreturn]] static void refuse() { throw NpyError("its head is not one that NumPy writes"); }

  std::string_view text_;
};

}  // namespace

Item read_npy(std::span<const std::uint8_t> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(magic) || text.size() < 12) throw NpyError("it is no .npy file");
  const std::size_t length_bytes = file[6] == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::size_t{file[8 + i]} << 8 * i;
  const std::size_t start = 8 + length_bytes;
  if (file[6] < 1 || file[6] > 3 || file[7] != 0 || length > file.size() - start)
    throw NpyError("its head is damaged, or newer");
  Item item = Head(text.substr(start, length)).item();
  const std::size_t left = file.size() - start - length;
  std::size_t size = std::ranges::count(item.shape, 0) > 0 ? 0 : item.item_bytes;
  for (const std::int64_t dimension : item.shape) {
    if (size > 0 && size > left / static_cast<std::size_t>(dimension)) throw NpyError(too_short);
    size *= static_cast<std::size_t>(dimension);
  }
  if (size > left) throw NpyError(too_short);
  item.data = file.subspan(start + length, size);
  return item;
}

std::vector<std::uint8_t> row_major(const Item& item) {
  std::vector<std::uint8_t> numbers(item.data.size());
  const std::size_t rank = item.shape.size();
  std::vector<std::size_t> strides(rank), at(rank);
  std::size_t stride = item.item_bytes;
  for (std::size_t d = 0; d < rank; ++d) strides[d] = stride, stride *= static_cast<std::size_t>(item.shape[d]);
  std::size_t from = 0;
  for (std::size_t to = 0; to < numbers.size(); to += item.item_bytes) {
    std::memcpy(numbers.data() + to, item.data.data() + from, item.item_bytes);
    for (std::size_t d = rank; d-- > 0;) {
      from += strides[d];
      if (++at[d] < static_cast<std::size_t>(item.shape[d])) break;
      from -= strides[d] * at[d];
      at[d] = 0;
    }
  }
  return numbers;
}

bool has_name(std::string_view dtype) { return std::ranges::find(kinds, dtype, &Kind::dtype) != std::end(kinds); }

std::string npy_head(std::string_view dtype, std::size_t item_bytes, const std::vector<std::int64_t>& shape) {
  const auto* const known = std::ranges::find(kinds, dtype, &Kind::dtype);
  std::string dict = "{'descr': '";
  if (known != std::end(kinds))
    dict += known->descr;
  else
    (dict += item_bytes == 1 ? "|V" : "<V") += std::to_string(item_bytes);
  dict += "', 'fortran_order': False, 'shape': (";
  for (std::size_t d = 0; d < shape.size(); ++d) (dict += d > 0 ? ", " : "") += std::to_string(shape[d]);
  dict += shape.size() == 1 ? ",), }" : "), }";
  constexpr std::size_t alignment = 64, before = 10;
  dict.append(alignment - 1 - (before + dict.size()) % alignment, ' ');
  dict += '\n';
  std::string head(magic);
  head += {1, 0, static_cast<char>(dict.size() & 0xFF), static_cast<char>(dict.size() >> 8)};
  return head + dict;
}

}  // namespace jaxexp::npy

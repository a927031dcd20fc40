// The head of a .npy file is the literal of a dict in Python, of which NumPy writes one form.
#include "runtime/npy/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "wire/archive/zip_file.h"
#include "wire/base/dtype.h"

namespace jaxexp::npy {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr const char* too_short = "it ends before its last number";

/// As NumPy's files have a dtype; empty where they hold its numbers as bytes.
std::string_view descr_of(std::string_view name) {
  const wire::Dtype* const dtype = wire::dtype_with(&wire::Dtype::name, name);
  return dtype ? dtype->npy : std::string_view();
}

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
    const auto* const known = descr.empty() ? nullptr : wire::dtype_with(&wire::Dtype::npy, descr);
    // NumPy calls the dtypes of ml_dtypes V1, V2 or f1.
    const bool are_bytes = error == std::errc{} && rest == last && digits == 2 && bytes <= 16 &&
                           (descr[0] == '|' || descr[0] == '<') && descr[2] != '0' &&
                           (descr[1] == 'V' || (descr[1] == 'f' && bytes == 1));
    if ((!known && !are_bytes) || bytes == 0)
      throw NpyError("its dtype is '" + std::string(descr.substr(0, 20)) +
                     "', where a little-endian number is expected");
    item.item_bytes = bytes;
    if (known) item.dtype = known->name;
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
  [[noreturn]] static void refuse() { throw NpyError("its header is not in the form that NumPy writes"); }

  std::string_view text_;
};

}  // namespace

Item read_npy(std::span<const std::uint8_t> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(magic) || text.size() < 12) throw NpyError("it is not a .npy file");
  const std::size_t length_bytes = file[6] == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= std::size_t{file[8 + i]} << 8 * i;
  const std::size_t start = 8 + length_bytes;
  if (file[6] < 1 || file[6] > 3 || file[7] != 0 || length > file.size() - start)
    throw NpyError("its header is damaged, or of a newer version");
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

bool has_name(std::string_view dtype) { return !descr_of(dtype).empty(); }

std::string npy_head(std::string_view dtype, std::size_t item_bytes, const std::vector<std::int64_t>& shape) {
  const std::string_view known = descr_of(dtype);
  std::string dict = "{'descr': '";
  if (!known.empty())
    dict += known;
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

// ZIP files: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT

namespace {

constexpr std::uint32_t local_signature = 0x04034b50, central_signature = 0x02014b50, zip64_signature = 0x06064b50,
                        locator_signature = 0x07064b50, in_zip64 = 0xFFFFFFFF;
constexpr std::size_t local_size = 30, central_size = 46, locator_size = 20, end_size = 22;

std::span<const std::uint8_t> part(std::span<const std::uint8_t> bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) throw NpyError("it is a damaged .npz file");
  return bytes.subspan(at, size);
}

std::uint64_t number(std::span<const std::uint8_t> bytes, std::uint64_t at, std::size_t size) {
  const auto digits = part(bytes, at, size);
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | digits[i];
  return value;
}

/// Where the directory is. It ends where the records about it begin, and the last of these ends the file: otherwise
/// there is more in the file, such as another .npz file in front.
struct Directory {
  explicit Directory(std::span<const std::uint8_t> file) {
    const std::uint64_t last =
        std::string_view(reinterpret_cast<const char*>(file.data()), file.size()).rfind("PK\5\6");
    if (last == std::string_view::npos) throw NpyError("it is not a .npz file, or it is damaged");
    members = number(file, last + 10, 2);
    position = number(file, last + 16, 4);
    std::uint64_t size = number(file, last + 12, 4), end = last;
    if (last >= locator_size && number(file, last - locator_size, 4) == locator_signature) {
      end = number(file, last - locator_size + 8, 8);
      if (number(file, end, 4) != zip64_signature || end + 12 + number(file, end + 4, 8) != last - locator_size)
        throw NpyError("it is a damaged .npz file");
      members = number(file, end + 32, 8);
      size = number(file, end + 40, 8);
      position = number(file, end + 48, 8);
    }
    if (position + size != end || last + end_size + number(file, last + 20, 2) != file.size())
      throw NpyError("it is a damaged .npz file, or contains something else");
  }

  std::uint64_t members, position;
};

struct Member {
  Member(std::span<const std::uint8_t> file, std::size_t at) {
    if (number(file, at, 4) != central_signature) throw NpyError("it is a damaged .npz file");
    is_encrypted = number(file, at + 8, 2) & 1;
    method = number(file, at + 10, 2);
    crc = number(file, at + 16, 4);
    size = number(file, at + 20, 4);
    std::uint64_t full_size = number(file, at + 24, 4);
    const std::uint64_t name_size = number(file, at + 28, 2), extra_size = number(file, at + 30, 2),
                        comment_size = number(file, at + 32, 2);
    position = number(file, at + 42, 4);
    const auto name_bytes = part(file, at + central_size, name_size);
    name.assign(name_bytes.begin(), name_bytes.end());
    const auto extra = part(file, at + central_size + name_size, extra_size);
    next = at + central_size + name_size + extra_size + comment_size;
    std::size_t field = 0, inside = 4;  // of 64-bit numbers: those for which 32 bits are too few, in this order
    for (std::uint64_t* value : {&full_size, &size, &position}) {
      if (*value != in_zip64) continue;
      while (number(extra, field, 2) != 1) field += 4 + number(extra, field + 2, 2);
      *value = number(part(extra, field, 4 + number(extra, field + 2, 2)), inside, 8);
      inside += 8;
    }
  }

  std::string name;
  bool is_encrypted;
  std::uint64_t method, crc, size, position;
  std::size_t next;
};

}  // namespace

std::vector<std::pair<std::string, Item>> read_npz(std::span<const std::uint8_t> file) {
  const Directory directory(file);
  std::vector<std::pair<std::string, Item>> items;
  std::size_t at = directory.position, left = file.size();
  for (std::uint64_t i = 0; i < directory.members; ++i) {
    const Member member(file, at);
    at = member.next;
    if (!member.name.ends_with(".npy"))
      throw NpyError("its member '" + member.name.substr(0, 80) + "' is not an array");
    if (member.size > left) throw NpyError("it is a damaged .npz file");  // members share bytes
    left -= static_cast<std::size_t>(member.size);
    if (member.method != 0) throw NpyError("it is compressed: save it with np.savez, without compression");
    if (member.is_encrypted) throw NpyError("it is encrypted");
    const auto header = part(file, member.position, local_size);
    if (number(header, 0, 4) != local_signature) throw NpyError("it is a damaged .npz file");
    const std::uint64_t name_size = number(header, 26, 2);
    const std::uint64_t start = member.position + local_size + name_size + number(header, 28, 2);
    const auto data = part(file, start, member.size);
    if (!std::ranges::equal(part(file, member.position + local_size, name_size), std::span(member.name), {}, {},
                            [](char c) { return static_cast<std::uint8_t>(c); }) ||
        wire::crc32(data) != member.crc)
      throw NpyError("it is a damaged .npz file");
    items.emplace_back(member.name.substr(0, member.name.size() - 4), read_npy(data));
  }
  return items;
}

std::string npz(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  std::vector<wire::ZipMember> members;
  for (const auto& [name, file] : files) {
    const std::uint32_t crc = wire::crc32({reinterpret_cast<const std::uint8_t*>(file.data()), file.size()});
    members.push_back({name + ".npy", file.size(), crc, out.size()});
    out += wire::zip_local_header(members.back().name, file.size(), crc, out.size()) + file;
  }
  return out + wire::zip_end(members, out.size(), {});
}

}  // namespace jaxexp::npy

// ZIP files: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
#include <algorithm>

#include "runtime/npy/npy.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::npy {
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
    if (last == std::string_view::npos) throw NpyError("it is no .npz file, or a damaged one");
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
      throw NpyError("it is a damaged .npz file, or has more in it");
  }

  std::uint64_t members, position;
};

/// A member's record in the directory.
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
    if (!member.name.ends_with(".npy")) throw NpyError("its member '" + member.name.substr(0, 80) + "' is no array");
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

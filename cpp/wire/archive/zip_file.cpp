// Numbers in ZIP files are little-endian and lie at any place.
#include "wire/archive/zip_file.h"

#include <algorithm>
#include <array>
#include <concepts>

#include "wire/archive/limits.h"

namespace jaxexp::wire {
namespace {

class Bytes {
 public:
  template <std::unsigned_integral Number>
  Bytes& number(Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) bytes_ += static_cast<char>(std::uint64_t{value} >> (8 * i) & 0xFF);
    return *this;
  }
  Bytes& u16(std::size_t value) { return number(static_cast<std::uint16_t>(value)); }
  Bytes& u32(std::uint64_t value) { return number(static_cast<std::uint32_t>(value)); }
  Bytes& u64(std::uint64_t value) { return number(value); }
  Bytes& text(std::string_view text) { return bytes_ += text, *this; }

  std::string& str() { return bytes_; }

 private:
  std::string bytes_;
};

constexpr std::uint64_t most16 = 0xFFFF, most32 = 0xFFFFFFFF;
constexpr std::uint16_t version = 20, version64 = 45, unix_version = 3 << 8;
constexpr std::uint16_t names_are_utf8 = 1 << 11, stored = 0;
constexpr std::uint16_t midnight = 0, first_day = 1 << 5 | 1;  // of 1980, the first that ZIP can express
constexpr std::uint32_t mode = 0100644u << 16;                 // a file that its owner may write
constexpr std::uint16_t aligned = 0xD935;                      // the extra field of zipalign: a number, then zeros
constexpr std::uint16_t zip64 = 1;

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xEDB88320u : 0u);
    }
    return made;
  }();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::uint8_t byte : bytes) crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF];
  return ~crc;
}

std::string zip_local_header(std::string_view name, std::uint64_t size, std::uint32_t crc32, std::uint64_t position) {
  const bool large = size >= most32;
  const std::size_t fixed = 30, extra = large ? 26 : 6;
  const std::uint64_t behind = position + fixed + name.size() + extra;
  const std::size_t padding = (member_alignment - behind % member_alignment) % member_alignment;
  Bytes header;
  header.text("PK\3\4").u16(large ? version64 : version).u16(names_are_utf8).u16(stored).u16(midnight).u16(first_day);
  header.u32(crc32).u32(std::min(size, most32)).u32(std::min(size, most32));
  header.u16(name.size()).u16(extra + padding).text(name);
  if (large) header.u16(zip64).u16(16).u64(size).u64(size);
  header.u16(aligned).u16(2 + padding).u16(member_alignment).text(std::string(padding, '\0'));
  return std::move(header.str());
}

void ZipDirectory::put(const std::string& bytes) {
  constexpr std::size_t most = std::size_t{1} << 20;
  pending_ += bytes;
  size_ += bytes.size();
  if (pending_.size() < most) return;
  sink_({reinterpret_cast<const std::uint8_t*>(pending_.data()), pending_.size()});
  pending_.clear();
}

void ZipDirectory::add(std::string_view folder, std::string_view name, std::uint64_t size, std::uint32_t crc32,
                       std::uint64_t position) {
  const bool far = position >= most32, large = size >= most32;
  const std::size_t numbers = (large ? 16 : 0) + (far ? 8 : 0);
  const std::uint16_t needed = numbers ? version64 : version;
  Bytes bytes;
  bytes.text("PK\1\2").u16(unix_version | needed).u16(needed).u16(names_are_utf8).u16(stored).u16(midnight);
  bytes.u16(first_day).u32(crc32).u32(std::min(size, most32)).u32(std::min(size, most32));
  bytes.u16(folder.size() + name.size())
      .u16(numbers ? 4 + numbers : 0)
      .u16(0)
      .u16(0)
      .u16(0)
      .u32(mode)
      .u32(far ? most32 : position)
      .text(folder)
      .text(name);
  if (numbers) bytes.u16(zip64).u16(numbers);
  if (large) bytes.u64(size).u64(size);
  if (far) bytes.u64(position);
  put(bytes.str());
  ++count_;
}

void ZipDirectory::end(std::string_view comment) {
  const std::uint64_t size = size_;
  Bytes bytes;
  if (count_ >= most16 || size >= most32 || position_ >= most32) {
    const std::uint64_t at = position_ + size;
    bytes.text("PK\6\6").u64(44).u16(unix_version | version64).u16(version64).u32(0).u32(0);
    bytes.u64(count_).u64(count_).u64(size).u64(position_);
    bytes.text("PK\6\7").u32(0).u64(at).u32(1);
  }
  const std::size_t shown = std::min(count_, most16);
  bytes.text("PK\5\6").u16(0).u16(0).u16(shown).u16(shown).u32(std::min(size, most32)).u32(std::min(position_, most32));
  bytes.u16(comment.size()).text(comment);
  put(bytes.str());
  sink_({reinterpret_cast<const std::uint8_t*>(pending_.data()), pending_.size()});
}

std::string zip_end(std::vector<ZipMember>& members, std::uint64_t position, std::string_view comment) {
  std::ranges::sort(members, {}, &ZipMember::position);
  std::string all;
  ZipDirectory directory(position,
                         [&](std::span<const std::uint8_t> bytes) { all.append(bytes.begin(), bytes.end()); });
  for (const ZipMember& member : members) directory.add({}, member.name, member.size, member.crc32, member.position);
  directory.end(comment);
  return all;
}

}  // namespace jaxexp::wire

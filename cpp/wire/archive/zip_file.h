// The bytes of ZIP files of stored members, as in PKWARE's APPNOTE.TXT 6.3.10.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace jaxexp::wire {

/// Where an archive keeps its index, artifacts without their modules, files of weights, and the heads of its sections.
inline constexpr std::string_view index_name = ".jaxexp/index", apart_folder = ".jaxexp/apart/",
                                  weights_folder = ".jaxexp/weights/", section_name = ".jaxexp/section";

/// The checksum of ZIP files (ISO 3309, reflected).
std::uint32_t crc32(std::span<const std::uint8_t> bytes);

/// What stands in front of a member's bytes when it begins at `position`; they begin at a multiple of
/// `member_alignment`. Dates and attributes are the same for all members, so equal members make equal files.
std::string zip_local_header(std::string_view name, std::uint64_t size, std::uint32_t crc32, std::uint64_t position);

struct ZipMember {
  std::string name;
  std::uint64_t size;
  std::uint32_t crc32;
  std::uint64_t position;  // of its header
};

/// Takes bytes that follow each other.
using Sink = std::function<void(std::span<const std::uint8_t>)>;

/// What stands behind the last member, from `position` on: the central directory and the end with the comment, written
/// piece by piece.
class ZipDirectory {
 public:
  ZipDirectory(std::uint64_t position, Sink sink) : position_(position), sink_(std::move(sink)) {}

  /// Members come in the order of their positions.
  void add(std::string_view folder, std::string_view name, std::uint64_t size, std::uint32_t crc32,
           std::uint64_t position);
  void end(std::string_view comment);

 private:
  void put(const std::string& bytes);

  const std::uint64_t position_;
  const Sink sink_;
  std::string pending_;
  std::uint64_t count_ = 0, size_ = 0;
};

/// The same as a whole. Puts the members in the order of their positions.
std::string zip_end(std::vector<ZipMember>& members, std::uint64_t position, std::string_view comment);

}  // namespace jaxexp::wire

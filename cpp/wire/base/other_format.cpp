// Known by their first bytes; python/jaxexp/_kernel/io/other_files.py says more to users of Python.
#include "wire/base/other_format.h"

#include <algorithm>
#include <utility>

#include "wire/base/text.h"

namespace jaxexp::wire {
namespace {

/// Whether a file begins as a text does: with UTF-8, which may be cut inside its last character, and without control
/// characters. Of random bytes, that many are hardly ever text.
bool is_text(std::span<const std::uint8_t> file) {
  constexpr std::size_t looked_at = 64, longest = 4;
  const std::span head = file.first(std::min(file.size(), looked_at));
  const auto is_control = [](std::uint8_t c) { return (c < ' ' && (c < '\t' || c > '\r')) || c == 0x7F; };
  if (head.size() < 3 || std::ranges::any_of(head, is_control)) return false;
  for (std::size_t cut = 0; cut < (head.size() < file.size() ? longest : 1); ++cut)
    if (is_utf8(head.first(head.size() - cut))) return true;
  return false;
}

}  // namespace

std::string_view other_format(std::span<const std::uint8_t> file) {
  using namespace std::string_view_literals;
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  constexpr std::pair<std::string_view, std::string_view> known[] = {
      {"PK\3\4"sv, "a zip archive"},
      {"\x1F\x8B"sv, "a gzip file"},
      {"\x28\xB5\x2F\xFD"sv, "a Zstandard file"},
      {"JAXEXPEX"sv, "a file of executables"},
      {"\x93NUMPY"sv, "a NumPy array"},
      {"\x89HDF\r\n"sv, "an HDF5 file"},
      {"ML\xEFR"sv, "an MLIR module, such as the StableHLO inside an artifact"},
      {"\x7F\x45LF"sv, "a program or library"},
      {"\x89PNG"sv, "an image"},
  };
  for (const auto& [start, name] : known)
    if (bytes.starts_with(start)) return name;
  if (bytes.size() > 8 && bytes.substr(4, 5) == "\0\0\0\0{"sv)
    return "a safetensors file, which has only weights: load the artifact that it is beside";
  // A pickle names its protocol; an artifact that begins with these two bytes goes on with a zero.
  if (bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && bytes[2] != 0) return "a pickle";
  if (is_text(file)) return "text";
  return {};
}

}  // namespace jaxexp::wire

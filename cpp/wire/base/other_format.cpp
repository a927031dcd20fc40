// Known by their first bytes; python/jaxexp/_kernel/io/other_files.py says more to users of Python.
#include "wire/base/other_format.h"

#include <algorithm>
#include <utility>

namespace jaxexp::wire {

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
  const auto is_text = [](unsigned char c) {
    return (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r') || (c >= 0x80 && c <= 0xF4);  // UTF-8 uses no others
  };
  if (bytes.size() > 2 && std::ranges::all_of(bytes.substr(0, 8), is_text)) return "text";
  return {};
}

}  // namespace jaxexp::wire

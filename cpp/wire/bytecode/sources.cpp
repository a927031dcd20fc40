// XLA shows the line of the source where something is wrong, and opens whatever file a location names: one with a
// secret, or one that never ends.
//
// Other parts of a module may share the text of a file's name, and the number of a text may need more bytes than there
// are. So the location itself becomes another one of the same size, which is possible because numbers may have more
// bytes than they need: an unknown one, or one in a file that is not here.
#include "wire/bytecode/sources.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>

#include "wire/base/error.h"
#include "wire/bytecode/head.h"

namespace jaxexp::wire {
namespace {

constexpr std::size_t longest_number = 9;
/// How MLIR's builtin dialect numbers locations.
constexpr std::uint64_t file_location = 11, unknown_location = 15;

/// Writes a number as MLIR bytecode has it, in as many bytes as there are: the zeros at the low end of the first one
/// count the bytes that follow.
void put_number(std::span<std::uint8_t> bytes, std::uint64_t number) {
  const std::size_t size = bytes.size();
  if (size < longest_number) number = number << size | std::uint64_t{1} << (size - 1);
  std::size_t at = size == longest_number ? (bytes[0] = 0, 1) : 0;
  for (; at < size; ++at, number >>= 8) bytes[at] = static_cast<std::uint8_t>(number);
}

/// Writes numbers that fill these bytes: each takes as many as are left for it.
void put_numbers(std::span<std::uint8_t> bytes, std::span<const std::uint64_t> numbers, const Path& where) {
  for (std::size_t left = numbers.size(); const std::uint64_t number : numbers) {
    const std::size_t size = std::min(bytes.size() - --left, longest_number);
    put_number(bytes.first(size), number);
    bytes = bytes.subspan(size);
  }
  if (!bytes.empty()) throw Error(where, "locations in files as MLIR writes them", "one with more numbers");
}

}  // namespace

bool is_here(std::string_view name) {
  std::error_code ignored;
  return !name.empty() && status(std::filesystem::path(name), ignored).type() != std::filesystem::file_type::not_found;
}

std::optional<std::vector<std::uint8_t>> without_sources(std::span<const std::uint8_t> module, const Path& where,
                                                         const std::function<bool(std::string_view)>& is_there) {
  const Sources sources = read_sources(module, where);
  std::map<std::string_view, bool> known;
  const auto is_known = [&](std::string_view name) {
    const auto [found, is_new] = known.try_emplace(name);
    if (is_new) found->second = is_there(name);
    return found->second;
  };
  std::optional<std::vector<std::uint8_t>> changed;
  for (const auto& [file, bytes] : sources.locations) {
    if (!is_known(file)) continue;
    if (!changed) changed.emplace(module.begin(), module.end());
    const auto begin = static_cast<std::size_t>(bytes.data() - module.data());
    const auto place = std::span(*changed).subspan(begin, bytes.size());
    if (place.size() <= longest_number) {
      put_number(place, unknown_location);
      continue;
    }
    const auto other = std::ranges::find_if_not(sources.texts, is_known, [](auto& text) { return text.second; });
    if (other == sources.texts.end()) throw Error(where, "a text that is not the name of a file here", "none");
    put_number(place.first(1), file_location);
    put_numbers(place.subspan(1), std::array{other->first, std::uint64_t{0}, std::uint64_t{0}}, where);
  }
  return changed;
}

}  // namespace jaxexp::wire

// What is wrong with an artifact, and where in it: the only exception that cpp/wire throws on bad input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace jaxexp::wire {

/// A place in an artifact, as a chain of links on the reader's stack; spelled out only when something is wrong there.
struct Path {
  const Path* parent = nullptr;
  std::string_view name = {};
  std::int64_t index = -1;

  /// As in "vjp.in_tree.children[3].kind"; the middle of a long path is left out.
  std::string str() const {
    constexpr std::size_t shown = 8;  // at either end
    std::vector<const Path*> links;
    for (const Path* link = this; link; link = link->parent)
      if (!link->name.empty()) links.push_back(link);
    std::string text;
    for (std::size_t i = links.size(); i-- > 0;) {
      if (i >= shown && i + shown < links.size()) {
        if (i == shown) text += "..";
        continue;
      }
      if (!text.empty()) text += '.';
      text += links[i]->name;
      if (links[i]->index >= 0) text += '[' + std::to_string(links[i]->index) + ']';
    }
    return text;
  }
};

/// The beginning of a text that may be too long for a message, cut between UTF-8 characters.
inline std::string shortened(std::string_view text, std::size_t end = 80) {
  if (text.size() <= end) return std::string(text);
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

/// A text of unknown origin as people get to see it: `shown` of Python's jaxexp does the same. Printable characters
/// stay as they are. Others are escaped, as in "\\x1b", "\\n" and "\\u202e", and so are bytes that are not UTF-8. A
/// text that was escaped stays as it is.
std::string escaped(std::string_view text);

struct Error : std::exception {
  Error(const Path& where, std::string expected, std::string found)
      : path(where.str()), expected(std::move(expected)), found(std::move(found)) {}

  const char* what() const noexcept override { return expected.c_str(); }

  std::string path;
  std::string expected;
  std::string found;
};

/// In a file of tensors: the path is the name of a tensor, or empty.
struct TensorsError : Error {
  using Error::Error;
};

/// The message names the file, escaped.
inline std::system_error file_error(std::error_code code, const std::filesystem::path& path) {
  return {code, escaped(path.string())};
}

inline std::system_error file_error(int number, const std::filesystem::path& path) {
  return file_error({number, std::generic_category()}, path);
}

}  // namespace jaxexp::wire

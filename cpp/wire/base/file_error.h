// Files that cannot be used, as the public headers report them.
#pragma once

#include <filesystem>
#include <system_error>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// The message names the file, escaped.
inline std::system_error file_error(std::error_code code, const std::filesystem::path& path) {
  return {code, escaped(path.string())};
}

inline std::system_error file_error(int number, const std::filesystem::path& path) {
  return file_error({number, std::generic_category()}, path);
}

}  // namespace jaxexp::wire

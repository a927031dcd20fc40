// How a DeserializationError reads.
#include "jaxexp/deserialization_error.h"

#include <utility>

#include "wire/base/error.h"

namespace jaxexp {
namespace {

std::string said(const std::string& what, const std::string& path, const std::string& expected,
                 const std::string& found) {
  return "cannot read the " + what + ": " + (path.empty() ? "" : "at " + path + ": ") + "expected " + expected +
         ", found " + found;
}

}  // namespace

DeserializationError::DeserializationError(std::string path, std::string expected, std::string found)
    : DeserializationError(said("artifact", path, expected, found), path, expected, found) {}

DeserializationError DeserializationError::in_file(const std::string& file, const std::string& what) const {
  return {said(what + " '" + file + "'", path_, expected_, found_), path_, expected_, found_};
}

DeserializationError::DeserializationError(const std::string& message, std::string path, std::string expected,
                                           std::string found)
    : std::runtime_error(wire::escaped(message)),
      path_(std::move(path)),
      expected_(std::move(expected)),
      found_(std::move(found)) {}

}  // namespace jaxexp

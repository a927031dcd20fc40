// How a DeserializationError reads.
#include "jaxexp/deserialization_error.h"

#include <utility>

namespace jaxexp {

DeserializationError::DeserializationError(std::string path, std::string expected, std::string found)
    : DeserializationError("cannot read the artifact: " + (path.empty() ? "" : "at " + path + ": ") + "expected " +
                               expected + ", found " + found,
                           path, expected, found) {}

DeserializationError::DeserializationError(const std::string& message, std::string path, std::string expected,
                                           std::string found)
    : std::runtime_error(message), path_(std::move(path)), expected_(std::move(expected)), found_(std::move(found)) {}

}  // namespace jaxexp

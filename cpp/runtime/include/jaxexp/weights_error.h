// What functions with weights throw.
#pragma once

#include <string>

#include "jaxexp/deserialization_error.h"

namespace jaxexp {

/// Weights that are not what a function needs, or a file of weights that cannot be read.
class WeightsError : public DeserializationError {
 public:
  WeightsError(std::string file, std::string tensor, std::string expected, std::string found);

  const std::string& file() const noexcept { return file_; }
  /// Its name; empty where it is the whole file.
  const std::string& tensor() const noexcept { return path(); }

 private:
  std::string file_;
};

}  // namespace jaxexp

// What the readers of artifacts and archives throw.
#pragma once

#include <stdexcept>
#include <string>

namespace jaxexp {

/// All that is thrown about bytes that are no artifact, or a damaged one. The message, what(), is one line: `escaped`
/// of jaxexp/artifact.h was applied to it. The other texts have names from the artifact as they are there.
class DeserializationError : public std::runtime_error {
 public:
  DeserializationError(std::string path, std::string expected, std::string found);

  /// Where in the artifact, such as "in_avals[3].shape[0]" or "vjp.in_tree.children[1]"; empty where it is the whole.
  const std::string& path() const noexcept { return path_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& found() const noexcept { return found_; }

  /// The same error with a message that names the file, and what was read from it.
  DeserializationError in_file(const std::string& file, const std::string& what = "artifact") const;

 protected:
  DeserializationError(const std::string& message, std::string path, std::string expected, std::string found);

 private:
  std::string path_, expected_, found_;
};

}  // namespace jaxexp

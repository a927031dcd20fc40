// What functions that run throw.
#pragma once

#include <stdexcept>
#include <string>

namespace jaxexp {

/// Why a function cannot be loaded or called. Damaged artifacts are a DeserializationError. The message, what(), is one
/// line: `escaped` of jaxexp/artifact.h was applied to it.
class RunError : public std::runtime_error {
 public:
  enum class Reason {
    argument,     // what the caller gave does not fit: an array, a name, a device, a file that is no plugin
    unsupported,  // what the artifact asks for is not there: a platform, a custom call, a newer StableHLO, ...
    plugin,       // the plugin failed; the message is its own
  };

  RunError(Reason reason, const std::string& message);

  Reason reason() const noexcept { return reason_; }

 private:
  Reason reason_;
};

}  // namespace jaxexp

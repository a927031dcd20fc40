// What every error of the library is like that a fuzz target sees.
#pragma once

#include <string>

#include "target.h"
#include "wire/base/error.h"

namespace jaxexp::tests {

inline void check_error(const wire::Error& error) {
  require(!error.expected.empty() && !error.found.empty(), "an error says what was expected and found");
  for (const std::string& text : {error.path, error.expected, error.found})
    require(text.size() < 1000 && is_utf8(text), "an error's texts are short and can be shown");
}

/// Whether it is done, and not refused.
template <class Work>
bool attempt(const Work& work) {
  try {
    work();
    return true;
  } catch (const wire::Error& error) {
    check_error(error);
    return false;
  }
}

}  // namespace jaxexp::tests

// What is wrong, as an exception says it.
#pragma once

#include <string>
#include <vector>

#include "jaxexp/run_error.h"
#include "wire/base/error.h"

namespace jaxexp::tests {

/// What was found instead of what was expected; empty where nothing is wrong.
template <class Call>
std::string refused(const Call& call) {
  try {
    call();
  } catch (const wire::Error& error) {
    return error.found;
  } catch (const RunError& error) {
    return error.what();
  }
  return {};
}

/// A file of tests/golden.
std::vector<std::uint8_t> golden(const std::string& name);

}  // namespace jaxexp::tests

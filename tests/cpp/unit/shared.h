// What the unit tests share: bytes, and what is wrong as an exception says it.
#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "jaxexp/run_error.h"
#include "wire/base/error.h"

namespace jaxexp::tests {

using Bytes = std::vector<std::uint8_t>;

inline std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// The texts between bars.
inline std::vector<std::string> texts(const std::string& barred) {
  std::vector<std::string> found;
  std::istringstream stream(barred + '|');
  for (std::string text; std::getline(stream, text, '|');) found.push_back(text);
  return found;
}

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
Bytes golden(const std::string& name);

}  // namespace jaxexp::tests

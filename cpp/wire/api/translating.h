// Errors of cpp/wire as the public headers have them.
#pragma once

#include "jaxexp/deserialization_error.h"
#include "wire/base/error.h"

namespace jaxexp {

/// Runs a function of cpp/wire, whose errors become the public one.
template <class Function>
auto translating(const Function& function) {
  try {
    return function();
  } catch (const wire::Error& error) {
    throw DeserializationError(error.path, error.expected, error.found);
  }
}

}  // namespace jaxexp

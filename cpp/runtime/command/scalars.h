// Numbers on the command line.
#pragma once

#include <string>

#include "jaxexp/runtime.h"

namespace jaxexp::command {

/// A number as the argument `value`, which is a scalar. Throws InputError.
Array scalar(const std::string& text, const Value& value);

/// Throws InputError. `expected` is what the argument takes beside a file, as in "a number, or ".
[[noreturn]] void refuse_input(const std::string& text, const Value& value, const std::string& expected = {});

}  // namespace jaxexp::command

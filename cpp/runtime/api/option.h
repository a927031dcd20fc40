// Options of plugins as texts.
#pragma once

#include <string_view>

#include "jaxexp/runtime.h"

namespace jaxexp::runtime {

/// A whole number, true or false, or else the text itself.
Runtime::Options::mapped_type option_value(std::string_view text);

}  // namespace jaxexp::runtime

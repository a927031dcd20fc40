// Results as `jaxexp run` of the Python package prints them.
#pragma once

#include <string>
#include <vector>

#include "jaxexp/runtime.h"

namespace jaxexp::command {

/// The lines of a page: dtypes, shapes and ranges of all results, and the numbers of small ones. Throws RunError.
std::vector<std::string> shown(const std::string& title, const std::vector<Value>& values,
                               const std::vector<Array>& results);

}  // namespace jaxexp::command

// Custom calls that a plugin lacks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::runtime {

/// What a failed compilation says about a module's custom calls, by their targets: empty where it names none of them.
std::string refused_custom_calls(const std::vector<std::string_view>& targets, std::string_view error);

}  // namespace jaxexp::runtime

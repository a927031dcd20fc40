// Which plugin, on which machine: what code that was compiled earlier depends on.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

/// Names and values, in the order in which a difference is worth telling. Throws RunError where it cannot be found out.
std::vector<std::pair<std::string, std::string>> identity(const Client& client, const Device& device);

}  // namespace jaxexp::runtime

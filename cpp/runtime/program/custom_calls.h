// The custom calls of a module that a plugin does not have.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

/// Which of these targets the plugin lacks, or the first eight of them. It is asked about those that are not the
/// compiler's own.
std::vector<std::string_view> missing_custom_calls(const std::vector<std::string_view>& targets,
                                                   const std::shared_ptr<const Client>& client);

}  // namespace jaxexp::runtime

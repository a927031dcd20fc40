// How a compiled module divides its parameters and results among devices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::runtime {

/// Serialized xla.OpShardings; an empty one is replicated.
struct HloShardings {
  std::vector<std::string> parameters, results;
};

/// Reads them from a program as a plugin gives it: `format` is "hlo" or "hlo_with_config". Throws RunError.
HloShardings read_hlo_shardings(std::string_view program, std::string_view format);

}  // namespace jaxexp::runtime

// What a plugin is told about a module that it compiles.
#pragma once

#include <span>
#include <string>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

/// A serialized xla.CompileOptionsProto for one program on all of `devices`: numbers that the plugin gives them.
/// `overrides` are XLA's options for this program.
std::string compile_options(std::span<const int> devices, bool uses_shardy, const Client::Options& overrides);

}  // namespace jaxexp::runtime

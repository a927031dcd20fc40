// An xla.CompileOptionsProto, which compilation takes.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace jaxexp::runtime {

/// The bytes for a module that is one program for all of `devices`, which are numbers that the plugin gives them.
std::string compile_options(std::span<const int> devices, bool uses_shardy);

}  // namespace jaxexp::runtime

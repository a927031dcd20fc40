// What a plugin is told about a module that it compiles.
#pragma once

#include <span>
#include <string>

namespace jaxexp::runtime {

/// A serialized xla.CompileOptionsProto for one program on all of `devices`: numbers that the plugin gives them.
std::string compile_options(std::span<const int> devices, bool uses_shardy);

}  // namespace jaxexp::runtime

// What a plugin is told about a module that it compiles.
#pragma once

#include <span>
#include <string>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

/// The options with those that JAX sets for all programs, because XLA's own lose NaN in maxima and minima, where
/// neither these options nor XLA_FLAGS say something else. What is not XLA gets none.
Client::Options as_in_jax(const Client& client, Client::Options options);

/// A serialized xla.CompileOptionsProto for one program on all of `devices`: numbers that the plugin gives them.
/// `overrides` are XLA's options for this program.
std::string compile_options(std::span<const int> devices, bool uses_shardy, const Client::Options& overrides);

}  // namespace jaxexp::runtime

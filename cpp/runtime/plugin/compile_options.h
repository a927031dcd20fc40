// What a plugin is told about a module that it compiles.
#pragma once

#include <span>
#include <string>

#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

/// Whether it computes constants wrong when it compiles: XLA did before StableHLO 1.20, for example where integers are
/// divided by 0, or where bits of negative numbers are counted.
bool folds_wrong(const Client& client);

/// The options with those that JAX sets for all programs, because XLA's own lose NaN in maxima and minima, where
/// neither these options nor XLA_FLAGS say something else. A CPU's compiler that computes constants wrong leaves them
/// to the program. What is not XLA gets none.
Client::Options as_in_jax(const Client& client, Client::Options options);

/// A serialized xla.CompileOptionsProto for one program on all of `devices`: numbers that the plugin gives them.
/// `overrides` are XLA's options for this program.
std::string compile_options(std::span<const int> devices, bool uses_shardy, const Client::Options& overrides);

}  // namespace jaxexp::runtime

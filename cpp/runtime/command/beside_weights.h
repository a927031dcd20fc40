// Paths as Python counts them, where a function gets its weights by itself.
#pragma once

#include <string>
#include <vector>

#include "jaxexp/artifact.h"

namespace jaxexp::command {

/// The path at the beginning of a text: the weights, which are the first argument of the module, are no argument of the
/// call. "args[0]['w']" becomes "weights['w']", and "args[1]" becomes "args[0]".
std::string beside_weights(const std::string& text);

/// The same for the paths of arguments.
std::vector<Value> beside_weights(std::vector<Value> arguments);

}  // namespace jaxexp::command

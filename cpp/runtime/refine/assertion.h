// What JAX's assertions about shapes say.
#pragma once

#include <string>
#include <string_view>

namespace jaxexp::runtime::refine {

/// An assertion about a constraint in the words of jaxexp's errors in Python, as in "args[0].shape[1] must be a
/// multiple of 2, found 3 (exported with the constraint mod(b, 2) == 0)". Other texts stay as they are.
std::string in_own_words(std::string_view assertion);

}  // namespace jaxexp::runtime::refine

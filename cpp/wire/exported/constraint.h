// Constraints on dimension variables, such as "mod(b, 8) == 0", as a user wrote them.
#pragma once

#include <string_view>

#include "wire/base/error.h"
#include "wire/exported/dimension.h"

namespace jaxexp::wire {

/// `left == right`, or `left >= right`.
struct Constraint {
  bool is_equality;
  Expression left, right;  // may have equal terms, and constants that can be folded
};

/// Reads what the parser of JAX's SymbolicScope reads, within the limits of limits.h. The result refers to the text.
/// Throws Error.
Constraint parse_constraint(std::string_view text, const Path& path);

}  // namespace jaxexp::wire

// Between which bounds the integers of an array are.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/refine/code.h"
#include "runtime/refine/numbers.h"
#include "runtime/refine/shape.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::refine {

/// Both bounds are included. Truth values are 0 and 1.
struct Range {
  std::int64_t least, greatest;

  bool is_one() const { return least == greatest; }
  auto operator<=>(const Range&) const = default;
};

/// For each of several values one; nothing where it is not known.
using Ranges = std::vector<std::optional<Range>>;

/// Of a list that is not empty; nothing where a number is large.
std::optional<Range> range_of(const Integers& numbers, const Element& element);

/// Between which bounds the result of an operation is, by those of its operands; nothing where it is not known.
std::optional<Range> range_of(Tables& tables, const Operation& operation, const Ranges& operands);

}  // namespace jaxexp::runtime::refine

// Of which operations results begin with the same elements if their operands do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/refine/code.h"
#include "runtime/refine/infer.h"
#include "runtime/refine/range.h"
#include "runtime/refine/shape.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::refine {

/// The shapes of one array, without and with padding. Both have as many dimensions.
struct Shapes {
  Shape given, padded;

  std::size_t rank() const { return given.size(); }
  bool grows(std::size_t d) const { return given.at(d) != padded.at(d); }
  bool grows() const { return given != padded; }
  /// Whether a dimension of one of these numbers grows.
  bool grows_in(const Integers& dimensions) const;
  /// Whether a dimension that is not among the first ones grows.
  bool grows_from(std::size_t first) const;
};

/// An operation, without and with padding. What is not there throws std::out_of_range.
struct Pair {
  Tables& tables;
  const Operation &given, &padded;
  std::vector<Shapes> operands, results;
  Ranges ranges;              // of the operands, without padding
  std::vector<Ranges> parts;  // of what each is concatenated of, if that is one element along the last dimension

  const Shapes& operand(std::size_t i) const { return operands.at(i); }
  Integers integers(std::string_view attribute) const { return tables.needed_integers(given, attribute); }
  Integers integers_when_padded(std::string_view attribute) const { return tables.needed_integers(padded, attribute); }
  std::size_t integer(std::string_view attribute) const;
  bool boolean(std::string_view attribute) const { return tables.boolean(tables.needed(given, attribute)); }
};

struct Rule {
  /// Whether the results begin with the same elements, too.
  bool (*holds)(const Pair& pair);
  std::string_view may_differ = {};  // the one attribute that need not be the same, because `holds` looks at it
};

/// The rule of an operation, by its name without a version, or of a custom call; null where there is none.
const Rule* rule_of(std::string_view base);
const Rule* rule_of_call(std::string_view target);

}  // namespace jaxexp::runtime::refine

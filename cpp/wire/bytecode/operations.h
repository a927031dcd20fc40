// What the operations of VHLO and Shardy have: values, regions and attributes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace jaxexp::wire {

/// An operation, in a few letters. `Values` in `bytecode.cpp` says what the letters of `values` and `regions` mean.
struct KnownOperation {
  /// Without the dialect if that is VHLO.
  std::string_view name;
  /// Its operands, and behind a ">" its results.
  std::string_view values;
  /// For each region the arguments, and behind a ">" what it returns. A "*" at the end says that there may be any
  /// number of regions such as the last one, a "+" that there is at least one.
  std::string_view regions = {};
  /// A letter for what each attribute of a VHLO operation has to be, in the alphabetical order of their names.
  std::string_view kinds = {};
  /// A letter for what the numbers in each attribute have to be; empty where they may be any, as for a dot.
  ///
  /// Dimensions of the first operand (a, o), of the one in the middle (b), of the last one (c), of the first result
  /// (r): different ones in all attributes with this letter, and in capitals all that there are. The same of the first
  /// result, one for each of the first operand (m). One dimension of the first operand, perhaps counted from the end
  /// (d); a place in front of or behind a dimension of the operand in the middle (v). At least one number (n). As many
  /// numbers as the first operand has dimensions (w), or pairs (p); the same without the two dimensions of a
  /// convolution that are not spatial (y, q). The lengths of the last dimensions, of the operand or of the result,
  /// whichever is longer (l). How elements of the operands are compared (e).
  std::string_view dimensions = {};
  /// The names of the attributes that are its own, with spaces between them.
  std::string_view names = {};

  std::vector<std::string_view> attribute_names() const;
  /// Which of its own attributes has this name; nothing where none has.
  std::optional<std::size_t> place_of(std::string_view attribute) const;
};

/// Null for operations that are not known here.
const KnownOperation* known_operation(std::string_view name);

/// The number of an entry of the table that this is from, counted from 1.
std::uint32_t number_of(const KnownOperation& known);

/// Whether a kind of VHLO attribute, by its number in bytecode, is what a letter asks for.
bool is_kind(char letter, unsigned kind);

}  // namespace jaxexp::wire

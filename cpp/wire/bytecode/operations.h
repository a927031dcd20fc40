// What attributes VHLO's operations have.
#pragma once

#include <cstdint>
#include <string_view>

namespace jaxexp::wire {

/// The attributes of a kind of operation, by their names in alphabetical order, and a letter for what each has to be.
struct OperationAttributes {
  std::string_view operation;
  std::string_view kinds;
  std::string_view names;  // with spaces between them
};

/// Null for operations whose attributes are not known here.
const OperationAttributes* attributes_of(std::string_view operation);

/// The number of an entry of the table that this is from, counted from 1.
std::uint32_t number_of(const OperationAttributes& known);

/// Whether a kind of VHLO attribute, by its number in bytecode, is what a letter asks for.
bool is_kind(char letter, unsigned kind);

}  // namespace jaxexp::wire

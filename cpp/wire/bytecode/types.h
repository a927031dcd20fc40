// Types of values that nobody compares with what an operation computes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "wire/bytecode/tables.h"

namespace jaxexp::wire {

/// What the types of an operation's values have to be, where StableHLO does not say it, or XLA does not compare it.
enum class TypeRule : std::uint8_t { none, cast, bits, expansion, random_bits, reduction, remainder };

/// Of an operation: without the dialect if that is VHLO.
TypeRule type_rule(std::string_view name);

/// Whether a cast is one from a dialect to another, which changes no value. MLIR's passes trust that.
bool is_cast(const AttributesAndTypes& tables, std::uint32_t operand, std::uint32_t result);

/// Whether XLA may compute arrays of other types than an operation says, or its compiler may crash. JAX writes no such
/// operation. The attributes are in the order of the table in operations.cpp.
bool is_unchecked(const AttributesAndTypes& tables, TypeRule rule, std::span<const std::uint32_t> attributes,
                  std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results);

/// The same for a custom call, which becomes an operation when sizes are known.
bool is_unchecked_call(const AttributesAndTypes& tables, std::string_view target,
                       std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results);

}  // namespace jaxexp::wire

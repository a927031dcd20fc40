// Whether a module's bytes can be given to MLIR's reader, which trusts them more than it should; and what is in
// them, for who judges a module before it runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// Checks MLIR bytecode (https://mlir.llvm.org/docs/BytecodeFormat/): that sections, counts, offsets and indices fit,
/// that attributes and types do not contain themselves, that constants have the bytes that their types ask for, that
/// operations have their attributes, values and regions, and that nothing nests deeper than recursive code can follow.
/// MLIR verifies what they mean beyond that.
///
/// Takes time in proportion to the size of the code and the tables; the data of constants is skipped. Operations of
/// VHLO and Shardy that are not known here pass, and those of other dialects do not. Throws Error with the path
/// `where`.
void check_bytecode(std::span<const std::uint8_t> module, const Path& where);

/// How many operations of each kind a module has, wherever they stand in it.
struct Contents {
  std::map<std::string, std::uint64_t> operations;  // by names such as "vhlo.add_v1"
  /// By the targets, which are views into the module; nothing where a custom call has a form that is not known here.
  std::optional<std::map<std::string_view, std::uint64_t>> custom_calls;
  std::set<std::string> unchecked;  // the kinds of those with types that XLA does not check
  bool compares_untyped = false;    // integers, by an operation that leaves open whether they are signed
};

/// Checks a module as `check_bytecode` does, and counts. Nothing for a version of bytecode that is not known here.
std::optional<Contents> read_contents(std::span<const std::uint8_t> module, const Path& where);

/// Views are into the module. What is not understood is in here as such: an inventory leaves nothing out.
struct Inventory {
  std::map<std::string, std::uint64_t> operations;  // how many of each kind, by names such as "vhlo.add_v1"
  std::set<std::string> unchecked;                  // the kinds of those with types that XLA does not check
  std::set<std::string> unreadable;                 // the kinds of those whose attributes cannot be read here
  /// The kinds of those that combine or compare single elements, and whether some have other values than numbers: they
  /// stand in a region for that, as a reduction or a sort has, or in a function that is called there.
  std::map<std::string, bool> in_bodies;
  /// The names of attributes: of operations, of functions' arguments and results, of the module. Those that VHLO's
  /// operations always have are left out.
  std::set<std::string_view> attributes;
  std::set<std::string_view> call_attributes;  // the same of custom calls
  /// The targets of custom calls, and whether one of their calls has side effects; nothing where that is not known.
  std::optional<std::map<std::string_view, bool>> custom_calls = std::map<std::string_view, bool>();
  std::set<std::string> unknown_types;             // of values, which are no arrays, tuples and tokens
  std::optional<std::uint64_t> largest_array = 0;  // in bytes, each dynamic dimension as 1; nothing if it is not known
  bool has_open_sizes = false;                     // of arrays
  std::map<std::string_view, std::optional<std::int64_t>> device_counts;  // of the module, if it says any
};

/// Checks a module as `check_bytecode` does. Nothing for a version of bytecode that is not known here.
std::optional<Inventory> read_inventory(std::span<const std::uint8_t> module, const Path& where);

}  // namespace jaxexp::wire

// What is in a module, for who judges it before it runs.
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

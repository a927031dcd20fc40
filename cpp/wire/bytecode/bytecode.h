// Whether a module's bytes can be given to MLIR's reader, which trusts them more than it should; and what is in them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  std::set<std::string> unchecked;  // the kinds of those with types that XLA does not check: wire/bytecode/types.h
  bool compares_untyped = false;    // integers, by an operation that leaves open whether they are signed
};

/// Checks a module as `check_bytecode` does, and counts. Nothing for a version of bytecode that is not known here.
std::optional<Contents> read_contents(std::span<const std::uint8_t> module, const Path& where);

/// A copy of a module whose custom calls of some targets are typed calls of XLA's FFI, with the operands and results
/// that they have as untyped ones. Checks as `check_bytecode` does. Nothing where there are no such calls, where their
/// form is not known here, and where other custom calls share the attribute that says what they are.
std::optional<std::vector<std::uint8_t>> with_typed_calls(std::span<const std::uint8_t> module, const Path& where,
                                                          const std::function<bool(std::string_view)>& is_changed);

}  // namespace jaxexp::wire

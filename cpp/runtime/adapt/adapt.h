// Modules as plugins can run them: one pass over a decoded module, in which each operation may be changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/refine/parts.h"
#include "wire/base/error.h"

namespace jaxexp::runtime::adapt {

struct ValueType {
  /// As in "float32[?,4]".
  std::string str() const;

  std::string_view dtype;  // as JAX names it; empty where it is no array, or of a dtype that is unknown here
  refine::Shape sizes;
};

struct MainTypes {
  std::vector<ValueType> arguments, results;
};

/// Of a module that was checked (wire/bytecode/bytecode.h). Throws wire::Error where there is no main function, and
/// RunError where its form is not known here.
MainTypes types_of_main(std::span<const std::uint8_t> module, const wire::Path& where);

/// Whether an operation, such as "vhlo.custom_call_v2", may be said in older words.
bool may_have_older_words(std::string_view operation);

/// What is changed. An operation whose form is not known here stays as it is.
struct Changes {
  using Targets = std::function<bool(std::string_view)>;  // whether custom calls with a target are meant

  bool comparisons = false;
  /// Divisions of integers are by no 0, with the results of these, and maxima and minima of constants are not known
  /// before the module runs. Not where sizes are open.
  bool constants = false;
  /// Scatters have indices of 32 bits or more.
  bool indices = false;
  /// Sorts keep equal elements in their order.
  bool sorts = false;
  /// Of convolutions, no padding takes away in front. Where sizes are open, they stay as they are. What a CPU's
  /// compiler would read outside of its arrays for is refused with RunError.
  bool convolutions = false;
  /// Custom calls are as before StableHLO 1.18, composites as before 1.15, and groups of devices as before 1.16: as
  /// numbers, and not as axes of a mesh; unless the older words cannot say it.
  bool older_words = false;
  /// Calls that compute arrays without elements have no layouts.
  Targets without_layouts = nullptr;
  /// Calls are typed calls of XLA's FFI, with the operands and results that they have as untyped ones.
  Targets typed = nullptr;

  bool any() const {
    return comparisons || constants || indices || sorts || convolutions || older_words || without_layouts || typed;
  }
};

/// Changes a module that was decoded, which has so many values. Returns whether anything was changed. Throws RunError
/// for convolutions.
bool change(refine::Tables& tables, refine::Block& top, refine::Id values, const Changes& changes);

/// Changes a module that was checked. Nothing where it stays as it is. Throws RunError where its form is not known
/// here, and for convolutions.
std::optional<std::vector<std::uint8_t>> changed(std::span<const std::uint8_t> module, const wire::Path& where,
                                                 const Changes& changes);

/// The module whose main function makes the tokens that it took, one for each of its ordered effects, and returns none.
/// Throws RunError where its form is not known here, or it takes or returns others than `effects` tokens.
std::vector<std::uint8_t> without_tokens(std::span<const std::uint8_t> module, const wire::Path& where,
                                         std::size_t effects);

/// The module whose arguments and results have no layouts of their own. Nothing where none has. Throws wire::Error.
std::optional<std::vector<std::uint8_t>> without_layouts(std::span<const std::uint8_t> module, const wire::Path& where);

}  // namespace jaxexp::runtime::adapt

// Modules as plugins can run them: in the words of an older StableHLO, without the tokens of ordered effects, with
// sorts and convolutions that stay within their arrays, and row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/refine/shape.h"
#include "wire/base/error.h"

namespace jaxexp::runtime::adapt {

/// What a main function takes or returns.
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

/// The module with custom calls as before StableHLO 1.18, with composites as before 1.15, and with groups of devices as
/// before 1.16: as numbers, and not as axes of a mesh. Nothing where it has no such words, or says with them what the
/// older ones cannot say. Throws wire::Error with the path `where` where the module is damaged, and RunError where its
/// form is not known here.
std::optional<std::vector<std::uint8_t>> with_older_words(std::span<const std::uint8_t> module,
                                                          const wire::Path& where);

/// The module whose arguments and results have no layouts of their own. Nothing where none has. Throws wire::Error.
std::optional<std::vector<std::uint8_t>> without_layouts(std::span<const std::uint8_t> module, const wire::Path& where);

/// The module whose comparisons of integers say whether these are signed. Nothing where all do. Throws the same as
/// `with_older_words`.
std::optional<std::vector<std::uint8_t>> with_typed_comparisons(std::span<const std::uint8_t> module,
                                                                const wire::Path& where);

/// The module whose divisions of integers are by no 0, with the results of these, and whose maxima and minima of
/// constants are not known before it runs. Nothing where there are none, and where sizes are open. Throws the same.
std::optional<std::vector<std::uint8_t>> with_guarded_constants(std::span<const std::uint8_t> module,
                                                                const wire::Path& where);

/// The module whose scatters have indices of 32 bits or more. Nothing where all have. Throws the same.
std::optional<std::vector<std::uint8_t>> with_wide_indices(std::span<const std::uint8_t> module,
                                                           const wire::Path& where);

/// The module with convolutions of which no padding takes away in front. Nothing where none does. Where sizes are open,
/// they stay as they are. Throws the same, and RunError where a CPU's compiler would read outside of its arrays.
std::optional<std::vector<std::uint8_t>> with_confined_convolutions(std::span<const std::uint8_t> module,
                                                                    const wire::Path& where);

/// The module with sorts that keep equal elements in their order. Nothing where all do. Throws the same.
std::optional<std::vector<std::uint8_t>> with_stable_sorts(std::span<const std::uint8_t> module,
                                                           const wire::Path& where);

/// The module whose calls of some targets have no layouts where they compute arrays without elements. Nothing where
/// there are no such calls. Throws the same.
std::optional<std::vector<std::uint8_t>> without_layouts_of_empty_results(
    std::span<const std::uint8_t> module, const wire::Path& where,
    const std::function<bool(std::string_view)>& is_meant);

/// The module whose main function makes the tokens that it took, one for each of its ordered effects, and returns none.
/// Throws the same, and RunError where it takes or returns others than `effects` tokens.
std::vector<std::uint8_t> without_tokens(std::span<const std::uint8_t> module, const wire::Path& where,
                                         std::size_t effects);

}  // namespace jaxexp::runtime::adapt

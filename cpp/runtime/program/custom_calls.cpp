// No function of the C API tells which custom calls a plugin has. Asking its compiler about one of them, by a module
// made for that, is no way: compilers crash on calls of their own whose operands are not those that they expect. So the
// module itself is compiled, and the plugin's error is searched for names.
#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/lapack/lapack.h"
#include "runtime/plugin/handlers.h"
#include "runtime/program/program.h"
#include "runtime/refine/refine.h"
#include "wire/api/translating.h"
#include "wire/base/error.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::runtime {
namespace {

constexpr std::size_t searched = 4096, shown = 8;  // characters of an error, names

bool is_part_of_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '$';
}

/// Whether a text has a name that does not go on before or behind it.
bool names(std::string_view text, std::string_view name) {
  if (name.empty()) return false;
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_part_of_name(text[at - 1])) && (end == text.size() || !is_part_of_name(text[end]))) return true;
  }
  return false;
}

std::string list(const std::vector<std::string_view>& targets) {
  std::string text;
  for (std::size_t i = 0; i < std::min(targets.size(), shown); ++i)
    (text += i > 0 ? ", " : "") += wire::shortened(targets[i]);
  if (targets.size() > shown) text += " and " + std::to_string(targets.size() - shown) + " more";
  return text;
}

bool has_handler(std::string_view target) { return lapack::handler_of(target) != nullptr; }

/// As far as it is known how.
std::optional<std::vector<std::uint8_t>> without_needless_layouts(std::span<const std::uint8_t> module,
                                                                  const wire::Path& where) {
  try {
    return adapt::without_layouts_of_empty_results(module, where, has_handler);
  } catch (const RunError&) {
    return std::nullopt;
  }
}

}  // namespace

std::string Program::refused_custom_calls(std::string_view error) const {
  error = error.substr(0, searched);
  std::vector<std::string_view> refused;
  std::ranges::copy_if(custom_calls, std::back_inserter(refused), [&](auto target) { return names(error, target); });
  if (refused.empty()) return {};
  std::string text = list(refused);
  if (custom_calls.size() > refused.size()) text += "; all its custom calls are " + list(custom_calls);
  return text;
}

void Program::provide_lapack(const std::shared_ptr<const Client>& client, const wire::Path& where) {
  if (client->platform() != "cpu" || !takes_handlers(*client)) return;
  calls_lapack_ = std::ranges::any_of(custom_calls, has_handler);
  if (!calls_lapack_) return;
  if (auto changed = without_needless_layouts(module, where)) {
    changed_ = std::move(*changed);
    module = changed_;
  }
  std::vector<NamedHandler> handlers;
  for (const std::string_view target : custom_calls)
    if (auto* const handler = lapack::handler_of(target); handler && !has_given_handler(*client, target))
      handlers.push_back({target, handler});
  if (!handlers.empty()) {
    if (const std::string why_not = lapack::find(); !why_not.empty()) {
      lapack_advice = "; LAPACK is in jaxlib, and none was found here (" + why_not +
                      "): install OpenBLAS, or name the file of a LAPACK in $JAXEXP_LAPACK";
      return;
    }
    for (const NamedHandler& handler : handlers) lapack::check_routine(handler.target);
    give_handlers(client, handlers);
  }
  types_calls_ = std::ranges::any_of(custom_calls, lapack::is_untyped);
  if (!types_calls_) return;
  if (auto changed = wire::with_typed_calls(module, where, lapack::is_untyped)) {
    changed_ = std::move(*changed);
    module = changed_;
  } else {
    lapack_advice = "; 'jaxexp migrate OLD NEW' writes its calls of LAPACK as today's releases do";
  }
}

std::optional<std::vector<std::uint8_t>> Program::with_shapes(std::span<const refine::Shape> arguments) const {
  const wire::Path where{nullptr, "mlir_module_serialized"};
  return translating([&] {
    auto made = refine::with_shapes(module, where, arguments);
    // Assertions about shapes, which are gone now, share with other calls what says that they are untyped.
    if (made && types_calls_)
      if (auto typed = wire::with_typed_calls(*made, where, lapack::is_untyped)) made = std::move(typed);
    if (made && has_guards_)
      if (auto guarded = adapt::with_guarded_constants(*made, where)) made = std::move(guarded);
    if (made && calls_lapack_)
      if (auto plain = without_needless_layouts(*made, where)) made = std::move(plain);
    if (made && has_convolutions_)
      if (auto confined = adapt::with_confined_convolutions(*made, where)) made = std::move(confined);
    return made;
  });
}

}  // namespace jaxexp::runtime

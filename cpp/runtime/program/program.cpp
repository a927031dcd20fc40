// Each refusal says what the artifact asks for, what there is, and what can be done.
#include "runtime/program/program.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>

#include "runtime/lapack/lapack.h"
#include "runtime/plugin/compile_options.h"
#include "runtime/plugin/handlers.h"
#include "runtime/refine/parts.h"
#include "runtime/refine/refine.h"
#include "wire/api/translating.h"
#include "wire/bytecode/head.h"

namespace jaxexp::runtime {
namespace {

using refine::Block, refine::Id, refine::Operation;

/// Loops in the form in which JAX writes those that count: while a number is less than a constant, 1 is added to it.
class Loops {
 public:
  Loops(refine::Tables& tables, Id values) : tables_(tables), constants_(values) {}

  bool all_count(const Block& block) {
    for (const Operation& one : block.operations) {
      if (base(one) == "constant") constants_[one.first_result] = &one;
      for (const auto& region : one.regions)
        for (const Block& inside : region)
          if (!all_count(inside)) return false;
      if (base(one) == "while" && !counts(one)) return false;
    }
    return true;
  }

 private:
  std::string_view base(const Operation& one) const {
    const refine::Tables::Kind& kind = tables_.kind(one.kind);
    return kind.is_vhlo ? kind.base : std::string_view();
  }

  bool counts(const Operation& loop) const {
    const Block &condition = loop.regions.at(0).at(0), &body = loop.regions.at(1).at(0);
    const Operation* const compared = maker(condition, condition.operations.back().operands.at(0));
    if (!compared || base(*compared) != "compare" || !constants_[compared->operands.at(1)]) return false;
    constexpr auto less = static_cast<std::uint64_t>(refine::Direction::less);
    const std::size_t number = compared->operands.at(0) - condition.first_argument;
    if (tables_.number(tables_.needed(*compared, "comparison_direction")) != less || number >= body.arguments.size())
      return false;
    const Operation* const next = maker(body, body.operations.back().operands.at(number));
    return next && base(*next) == "add" && next->operands.at(0) == body.first_argument + number &&
           is_one(next->operands.at(1));
  }

  static const Operation* maker(const Block& block, Id value) {
    const auto found = std::ranges::find(block.operations, value, &Operation::first_result);
    return found == block.operations.end() || found->results.size() != 1 ? nullptr : &*found;
  }

  bool is_one(Id value) const {
    const Operation* const constant = constants_[value];
    return constant && tables_.integers(tables_.needed(*constant, "value")) == refine::Integers{1};
  }

  refine::Tables& tables_;
  std::vector<const Operation*> constants_;  // that make values
};

/// Which releases of JAX write for which StableHLO: python/jaxexp/_kernel/releases/table.py for C++.
struct StablehloRelease {
  std::array<std::int64_t, 3> newest;  // the version of StableHLO that the release reads and writes
  std::string_view name;               // as `compatibility=` takes it
};

/// The newest release for each version of StableHLO, ascending.
inline constexpr auto releases = std::to_array<StablehloRelease>({
    {{0, 16, 1}, "jax-0.4.23"}, {{0, 17, 6}, "jax-0.4.24"},   {{0, 18, 2}, "jax-0.4.25"}, {{0, 19, 4}, "jax-0.4.26"},
    {{0, 19, 9}, "jax-0.4.27"}, {{0, 19, 10}, "jax-0.4.28"},  {{1, 1, 2}, "jax-0.4.29"},  {{1, 1, 3}, "jax-0.4.30"},
    {{1, 4, 2}, "jax-0.4.31"},  {{1, 7, 1}, "jax-0.4.33"},    {{1, 7, 5}, "jax-0.4.34"},  {{1, 7, 8}, "jax-0.4.35"},
    {{1, 8, 5}, "jax-0.4.37"},  {{1, 8, 7}, "jax-0.4.38"},    {{1, 8, 9}, "jax-0.5.0"},   {{1, 9, 3}, "jax-0.5.2"},
    {{1, 10, 0}, "jax-0.5.3"},  {{1, 10, 4}, "jax-0.6.0"},    {{1, 10, 9}, "jax-0.6.1"},  {{1, 11, 0}, "jax-0.6.2"},
    {{1, 12, 1}, "jax-0.7.0"},  {{1, 13, 0}, "jax-0.7.2"},    {{1, 13, 1}, "jax-0.8.0"},  {{1, 13, 3}, "jax-0.8.1"},
    {{1, 13, 5}, "jax-0.8.3"},  {{1, 13, 7}, "jax-0.9.0.1"},  {{1, 13, 8}, "jax-0.9.1"},  {{1, 14, 0}, "jax-0.9.2"},
    {{1, 16, 0}, "jax-0.10.0"}, {{1, 17, 0}, "jax-0.10.2"},   {{1, 18, 0}, "jax-0.11.0"}, {{1, 19, 0}, "jax-0.11.1"},
    {{1, 20, 0}, "jax-0.11.2"}, {{1, 22, 0}, "jax-0.12.0.1"},
});

using Version = Program::Version;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::unsupported, message); }

std::string joined(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) (text += text.empty() ? "" : ", ") += name;
  return text;
}

std::string str(const Version& version) {
  return std::to_string(version[0]) + '.' + std::to_string(version[1]) + '.' + std::to_string(version[2]);
}

/// Of a producer such as "StableHLO_v1.10.0".
std::optional<Version> stablehlo_version(std::string_view producer) {
  int major, minor, patch;
  const int found = std::sscanf(std::string(producer).c_str(), "StableHLO_v%9d.%9d.%9d", &major, &minor, &patch);
  return found == 3 ? std::optional(Version{major, minor, patch}) : std::nullopt;
}

std::optional<std::int32_t> platform_index(const Artifact& artifact, const Client& client) {
  const auto platforms = artifact.platforms();
  // Plugins for NVIDIA's and AMD's GPUs may call themselves after either what they are or whose they are.
  const auto found = std::ranges::find_if(platforms, [&](std::string_view platform) {
    return platform == client.platform() || (client.platform() == "gpu" && (platform == "cuda" || platform == "rocm"));
  });
  if (found == platforms.end()) {
    const auto disabled = artifact.disabled_checks();
    if (platforms.size() == 1 && std::ranges::find(disabled, "platform") != disabled.end()) return std::nullopt;
    refuse(std::string(artifact.function_name()) + " was exported for " + joined(platforms) +
           ", and the plugin is for " + client.platform() + ": export it with platforms=(\"" + client.platform() +
           "\", ...)");
  }
  if (platforms.size() == 1) return std::nullopt;
  return static_cast<std::int32_t>(found - platforms.begin());
}

/// What writes for a plugin that knows this version of StableHLO.
std::string compatibility(const Version& known) {
  const auto newer = std::ranges::upper_bound(releases, known, {}, &StablehloRelease::newest);
  if (newer == releases.begin()) return "compatibility=\"...\" for an older release of JAX";
  const std::string name(std::prev(newer)->name);
  return "compatibility=\"" + name + "\"; 'jaxexp migrate --to " + name + " OLD NEW' writes an artifact again for it";
}

}  // namespace

Program::Program(const Artifact& artifact, const std::shared_ptr<const Client>& client) {
  platform_index = runtime::platform_index(artifact, *client);
  is_ordered = !artifact.ordered_effects().empty();
  module = artifact.module();
  const wire::Path where{nullptr, "mlir_module_serialized"};
  translating([&] {
    const wire::Head head = wire::read_head(module, where);
    uses_shardy = std::ranges::find(head.dialects, "sdy") != head.dialects.end();
    producer = head.producer;
    const auto contents = wire::read_contents(module, where);
    has_known_functions_ = contents && contents->operations.contains("vhlo.func_v1");
    if (contents && contents->custom_calls)
      for (const auto& [target, count] : *contents->custom_calls) custom_calls.push_back(target);
    provide_lapack(client);
    if (contents) adapt(artifact, *client, *contents, where);
  });
  // Attributes say so, whose names are jax.buffer_donor and tf.aliasing_output.
  const std::string_view text(reinterpret_cast<const char*>(module.data()), module.size());
  may_donate = text.find("donor") != text.npos || text.find("alias") != text.npos;
}

bool Program::may_be_tried() const {
  const wire::Path where{nullptr, "mlir_module_serialized"};
  try {
    const auto found = translating([&] { return wire::read_inventory(module, where); });
    if (!found || !found->custom_calls) return false;
    for (const auto& [target, has_side_effect] : *found->custom_calls)
      if (has_side_effect && target != "shape_assertion") return false;  // which is gone when sizes are known
    for (const auto& [name, count] : found->operations)
      for (const std::string_view transfer : {"vhlo.infeed_", "vhlo.outfeed_", "vhlo.recv_", "vhlo.send_"})
        if (name.starts_with(transfer)) return false;
    if (!found->operations.contains("vhlo.while_v1")) return true;
    refine::Parts parts(module, where);
    const refine::Code code = parts.code();
    return Loops(parts.tables(), code.values).all_count(code.top);
  } catch (const RunError&) {  // of code that is not known here
    return false;
  }
}

std::optional<adapt::MainTypes> Program::types_of_main() const {
  if (!has_known_functions_) return std::nullopt;
  return translating([&] { return adapt::types_of_main(module, {nullptr, "mlir_module_serialized"}); });
}

/// As far as it is known how; what is left is the plugin's to refuse.
void Program::adapt(const Artifact& artifact, const Client& client, const wire::Contents& contents,
                    const wire::Path& where) {
  const auto take = [&](std::vector<std::uint8_t> changed) {
    changed_ = std::move(changed);
    module = changed_;
  };
  if (const auto effects = artifact.ordered_effects(); is_ordered) try {
      take(adapt::without_tokens(module, where, effects.size()));
    } catch (const RunError& error) {
      refuse(std::string(artifact.function_name()) + " has ordered effects (" + joined(effects) + "), and " +
             error.what());
    }
  if (auto plain = adapt::without_layouts(module, where)) take(std::move(*plain));
  const auto has = [&](auto... starts) {
    return std::ranges::any_of(contents.operations,
                               [&](const auto& kind) { return (kind.first.starts_with(starts) || ...); });
  };
  const auto [wanted, known] = stablehlo_versions(client);
  changes_.comparisons = contents.compares_untyped;
  changes_.constants =
      folds_wrong(client) && has("vhlo.divide_v1", "vhlo.remainder_v1", "vhlo.maximum_v1", "vhlo.minimum_v1");
  changes_.indices = has("vhlo.scatter_v1", "vhlo.scatter_v2");
  changes_.sorts = has("vhlo.sort_v1");
  changes_.convolutions = client.platform() == "cpu" && has("vhlo.convolution", "vhlo.dynamic_conv");
  changes_.older_words = wanted > known && std::ranges::any_of(contents.operations, [](const auto& kind) {
                           return adapt::may_have_older_words(kind.first);
                         });
  if (!changes_.any()) return;
  try {
    if (auto changed = adapt::changed(module, where, changes_)) take(std::move(*changed));
  } catch (const RunError&) {  // of code that is not known here, such as code that jumps between blocks
    if (changes_.convolutions) throw;
    if (changes_.typed) lapack_advice = "; 'jaxexp migrate OLD NEW' writes its calls of LAPACK as today's releases do";
  }
}

/// That of the module, and the plugin's; none where one of them is not known.
std::pair<Version, Version> Program::stablehlo_versions(const Client& client) const {
  const auto wanted = stablehlo_version(producer);
  const auto newest = client.api().attribute("stablehlo_current_version");
  if (!wanted || newest.size() != wanted->size()) return {};
  return {*wanted, {newest[0], newest[1], newest[2]}};
}

std::optional<std::vector<std::uint8_t>> without_sources(std::span<const std::uint8_t> module) {
  return translating([&] { return wire::without_sources(module, {nullptr, "mlir_module_serialized"}); });
}

std::string Program::newer_stablehlo(const Client& client) const {
  const auto [wanted, known] = stablehlo_versions(client);
  if (wanted <= known) return {};
  return "is written for StableHLO " + str(wanted) + ", the plugin knows it up to " + str(known) +
         ", and does not compile the module: take a newer plugin, or export the function with " + compatibility(known);
}

// No function of the C API tells which custom calls a plugin has. Asking its compiler about one of them, by a module
// made for that, is no way: compilers crash on calls of their own whose operands are not those that they expect. So the
// module itself is compiled, and the plugin's error is searched for names.

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

void Program::provide_lapack(const std::shared_ptr<const Client>& client) {
  if (client->platform() != "cpu" || !takes_handlers(*client)) return;
  if (std::ranges::none_of(custom_calls, has_handler)) return;
  changes_.without_layouts = has_handler;
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
  if (std::ranges::any_of(custom_calls, lapack::is_untyped)) changes_.typed = lapack::is_untyped;
}

std::optional<std::vector<std::uint8_t>> Program::with_shapes(std::span<const refine::Shape> arguments) const {
  const wire::Path where{nullptr, "mlir_module_serialized"};
  return translating([&] {
    return refine::with_shapes(module, where, arguments,
                               [&](refine::Tables& tables, refine::Block& top, refine::Id values) {
                                 if (changes_.any()) adapt::change(tables, top, values, changes_);
                               });
  });
}

}  // namespace jaxexp::runtime

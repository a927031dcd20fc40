// Each refusal says what the artifact asks for, what there is, and what can be done.
#include "runtime/program/program.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "runtime/adapt/adapt.h"
#include "runtime/plugin/compile_options.h"
#include "runtime/program/releases.h"
#include "wire/api/translating.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/head.h"
#include "wire/bytecode/sources.h"

namespace jaxexp::runtime {
namespace {

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
    if (contents) adapt(artifact, *client, *contents, where);
    if (contents && contents->custom_calls)
      for (const auto& [target, count] : *contents->custom_calls) custom_calls.push_back(target);
    provide_lapack(client, where);
  });
  // Attributes say so, whose names are jax.buffer_donor and tf.aliasing_output.
  const std::string_view text(reinterpret_cast<const char*>(module.data()), module.size());
  may_donate = text.find("donor") != text.npos || text.find("alias") != text.npos;
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
  const auto take_if_known = [&](const auto& change) {
    try {
      if (auto changed = change(module, where)) take(std::move(*changed));
    } catch (const RunError&) {  // of code that is not known here, such as that of a newer operation
    }
  };
  if (contents.compares_untyped) take_if_known(adapt::with_typed_comparisons);
  has_guards_ =
      folds_wrong(client) && std::ranges::any_of(contents.operations, [](const auto& kind) {
        constexpr std::string_view of[] = {"vhlo.divide_v1", "vhlo.remainder_v1", "vhlo.maximum_v1", "vhlo.minimum_v1"};
        return std::ranges::find(of, kind.first) != std::end(of);
      });
  if (has_guards_) take_if_known(adapt::with_guarded_constants);
  if (contents.operations.contains("vhlo.scatter_v1") || contents.operations.contains("vhlo.scatter_v2"))
    take_if_known(adapt::with_wide_indices);
  if (contents.operations.contains("vhlo.sort_v1")) take_if_known(adapt::with_stable_sorts);
  has_convolutions_ =
      client.platform() == "cpu" && std::ranges::any_of(contents.operations, [](const auto& kind) {
        return kind.first.starts_with("vhlo.convolution") || kind.first.starts_with("vhlo.dynamic_conv");
      });
  if (has_convolutions_)
    if (auto confined = adapt::with_confined_convolutions(module, where)) take(std::move(*confined));
  const auto [wanted, known] = stablehlo_versions(client);
  const auto is_newer = [](const auto& kind) { return adapt::may_have_older_words(kind.first); };
  if (wanted > known && std::ranges::any_of(contents.operations, is_newer)) take_if_known(adapt::with_older_words);
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

}  // namespace jaxexp::runtime

// What of an artifact is compiled, and whether a plugin can run it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jaxexp/artifact.h"
#include "runtime/plugin/client.h"

namespace jaxexp::runtime {

struct Program {
  /// Compares what an artifact asks for with what there is. Throws RunError for another platform, and for ordered
  /// effects. Throws DeserializationError where the module is damaged.
  Program(const Artifact& artifact, const Client& client);

  /// A serialized xla.CompileOptionsProto for one program on all of `devices`: numbers that the plugin gives them.
  std::string compile_options(std::span<const int> devices) const;
  /// What a failed compilation says about the module's custom calls: empty where it names none of them.
  std::string refused_custom_calls(std::string_view error) const;
  /// What a failed compilation may be due to where the module is written for a newer StableHLO than the plugin's:
  /// both versions and what to do. Empty otherwise. Most of what is newer compiles, so nobody asks before.
  std::string newer_stablehlo(const Client& client) const;

  std::span<const std::uint8_t> module;
  std::string_view producer;
  /// The first argument of the main function, where it is for several platforms.
  std::optional<std::int32_t> platform_index;
  bool uses_shardy;
  /// The targets of all custom calls, in alphabetical order, as far as they are known.
  std::vector<std::string_view> custom_calls;
};

}  // namespace jaxexp::runtime

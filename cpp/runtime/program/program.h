// What of an artifact is compiled, and whether a plugin can run it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxexp/artifact.h"
#include "runtime/adapt/adapt.h"
#include "runtime/plugin/client.h"
#include "runtime/refine/numbers.h"
#include "wire/base/error.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::runtime {

struct Program {
  using Version = std::array<std::int64_t, 3>;

  /// Compares what an artifact asks for with what there is, and gives the plugin handlers for LAPACK where the module
  /// calls it. Throws RunError for another platform, and where handlers are of no use. Throws DeserializationError
  /// where the module is damaged.
  Program(const Artifact& artifact, const std::shared_ptr<const Client>& client);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// The module for these shapes of its main function's arguments. Nothing where it is static. Throws RunError as
  /// runtime/refine/refine.h says, and DeserializationError.
  std::optional<std::vector<std::uint8_t>> with_shapes(std::span<const refine::Shape> arguments) const;

  /// What the module's main function takes and returns. Nothing where the module is newer than what is known here.
  /// Throws as `with_shapes` does.
  std::optional<adapt::MainTypes> types_of_main() const;

  /// Whether a call ends, and does nothing but compute, whatever its numbers are; not where that is not known.
  bool may_be_tried() const;

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
  bool may_donate;  // arguments
  bool is_ordered;  // calls follow one another: the function has ordered effects
  /// The targets of all custom calls, in alphabetical order, as far as they are known.
  std::vector<std::string_view> custom_calls;
  /// What to do about custom calls of LAPACK; empty where the module has none, or they are there.
  std::string lapack_advice;

 private:
  void adapt(const Artifact& artifact, const Client& client, const wire::Contents& contents, const wire::Path& where);
  std::pair<Version, Version> stablehlo_versions(const Client& client) const;
  void provide_lapack(const std::shared_ptr<const Client>& client);

  bool has_known_functions_ = false;
  adapt::Changes changes_;             // what this plugin needs, of modules made static, too
  std::vector<std::uint8_t> changed_;  // the module, where it is not as in the artifact
};

/// A module in which no location names a file that is here. Nothing where it is this one. Throws DeserializationError
/// where the module is damaged.
std::optional<std::vector<std::uint8_t>> without_sources(std::span<const std::uint8_t> module);

}  // namespace jaxexp::runtime

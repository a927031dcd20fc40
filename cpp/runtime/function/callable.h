// A function of an artifact, on devices of a plugin.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "jaxexp/artifact.h"
#include "jaxexp/call_times.h"
#include "runtime/array/numbers.h"
#include "runtime/function/kept_code.h"
#include "runtime/function/size_choice.h"
#include "runtime/plugin/executable.h"
#include "runtime/program/program.h"
#include "runtime/signature/parameter.h"
#include "wire/compiled/records.h"

namespace jaxexp::runtime {

/// May be called by several threads at once.
class Callable {
 public:
  /// `owner` keeps the artifact's memory; null where the caller does. `devices` are indices of the client's devices;
  /// none: the first ones. `sources` have code that was compiled earlier. `compile_options` are XLA's. Throws RunError.
  Callable(std::shared_ptr<const Client> client, Artifact artifact, std::shared_ptr<const void> owner,
           std::vector<std::size_t> devices, CodeSources sources, Client::Options compile_options,
           SizeOptions size_options);

  const Artifact& artifact() const { return artifact_; }
  const std::shared_ptr<const Client>& client() const { return client_; }
  const std::vector<std::size_t>& devices() const { return devices_; }
  const std::vector<Parameter>& arguments() const { return arguments_; }
  std::size_t nr_results() const { return results_.size(); }
  const CodeSources& sources() const { return sources_; }
  const Client::Options& compile_options() const { return compile_options_; }
  const SizeOptions& size_options() const { return size_options_; }

  /// As Function has them in jaxexp/runtime.h, but that weights are arguments, and that nobody counts the arguments.
  // They return the sets of sizes that they have compiled it for.
  std::vector<Variables> compile() const;
  std::vector<Variables> compile(const std::map<std::string, std::int64_t>& sizes) const;
  /// Whether a call may be made for nothing, with any numbers.
  bool may_be_tried() const {
    return artifact_.unordered_effects().empty() && !program_.is_ordered && program_.may_be_tried();
  }
  void keep_code(const std::filesystem::path& path) const;  // save_executable()
  std::string why_compiled() const;
  /// `times` may be null: then nothing waits for the results.
  Arrays call(Arguments arguments, CallTimes* times) const;

  bool uses(std::size_t argument) const { return std::ranges::binary_search(kept_, argument); }
  /// Whether numbers are on the devices, and divided there, as an argument has to be. Throws RunError where compiling
  /// fails.
  bool has_in_place(std::size_t argument, const Numbers& numbers) const;
  /// Puts a weight where calls need it, none of which donates it. Throws RunError.
  std::shared_ptr<const Numbers> put(std::size_t argument, const Numbers& numbers) const;

 private:
  using Buffers = std::vector<std::shared_ptr<const Buffer>>;

  /// The module that is compiled: the artifact's, or one with the sizes filled in, which this has.
  struct StaticModule {
    std::span<const std::uint8_t> bytes;
    std::vector<std::uint8_t> own = {};
  };

  struct Compiled {
    Executable executable;
    std::vector<Tiling> arguments, results;
    Buffers platform_index;                      // none where the main function takes no index
    std::optional<HloShardings> kept_shardings;  // of code from a file
    std::string why_compiled;
  };

  Variables check(Arguments arguments) const;
  const Compiled& compiled() const;  // where no dimension is symbolic
  std::shared_ptr<const Compiled> compiled(const Variables& sizes) const;
  Compiled make_compiled(const Variables& sizes) const;
  std::optional<Variables> padded_sizes(const Variables& given) const;
  std::optional<std::string> why_not_padded(const Variables& given, const Variables& padded) const;
  std::vector<Shape> module_shapes(const Variables& sizes) const;
  Arrays cut(const Arrays& results, const Variables& given) const;
  const Tiling& tiling(std::size_t argument) const;
  void check_signature() const;
  StaticModule static_module(const Variables& sizes) const;
  Executable make_executable(const StaticModule& module) const;
  std::string name() const { return std::string(artifact_.function_name()); }
  std::string options(const Client::Options& of_xla) const;
  wire::Entries conditions(const Variables& sizes, const StaticModule& module) const;
  const std::string& sha256_of_module() const;
  void explain(std::string_view error) const;
  Buffers make_platform_index() const;  // for each device
  void ask_for_shardings(Compiled& compiled) const;
  bool is_in_place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const;
  Buffers place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const;
  Arrays results(const Compiled& compiled, std::span<std::shared_ptr<const Buffer>> outputs,
                 const Variables& variables) const;
  void check_result(std::size_t index, const Numbers& numbers) const;
  std::optional<Block> block(const Numbers& numbers, std::size_t device, const Parameter& parameter,
                             const Tiling& tiling) const;

  const Device& device(std::size_t index) const { return client_->devices()[devices_[index]]; }

  std::shared_ptr<const void> owner_;
  std::shared_ptr<const Client> client_;
  Artifact artifact_;
  std::vector<std::size_t> devices_;
  Expressions expressions_;
  std::vector<Parameter> arguments_;
  std::set<std::string_view> variables_;  // those of the arguments' symbolic dimensions
  std::vector<Parameter> results_;
  std::vector<std::uint32_t> kept_;
  Program program_;
  CodeSources sources_;
  Client::Options compile_options_;
  SizeOptions size_options_;

  mutable std::once_flag is_hashed_;
  mutable std::string sha256_of_module_;
  enum class Place : signed char { unknown, on_host, elsewhere };
  mutable std::vector<std::atomic<Place>> places_;  // of results, which are checked then
  const SizeChoice choice_;
  mutable BySizes<Compiled> by_sizes_;                    // one for no sizes where no dimension is symbolic
  mutable std::atomic<const Compiled*> known_ = nullptr;  // that one: nobody waits for a mutex
};

}  // namespace jaxexp::runtime

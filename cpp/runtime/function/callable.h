// A function of an artifact, on devices of a plugin.
#pragma once

#include <algorithm>
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
#include "runtime/array/numbers.h"
#include "runtime/function/by_sizes.h"
#include "runtime/plugin/executable.h"
#include "runtime/program/program.h"
#include "runtime/signature/parameter.h"
#include "wire/base/file_bytes.h"
#include "wire/compiled/records.h"

namespace jaxexp::runtime {

/// May be called by several threads at once.
class Callable {
 public:
  using File = std::shared_ptr<const wire::FileBytes>;

  /// `owner` keeps the artifact's memory; null where the caller does. `devices` are indices of the client's devices;
  /// none: the first ones. `executables` is a file of code that was compiled earlier, or null. Throws RunError.
  Callable(std::shared_ptr<const Client> client, Artifact artifact, std::shared_ptr<const void> owner,
           std::vector<std::size_t> devices, File executables);

  const Artifact& artifact() const { return artifact_; }
  const std::shared_ptr<const Client>& client() const { return client_; }
  const std::vector<std::size_t>& devices() const { return devices_; }
  const std::vector<Parameter>& arguments() const { return arguments_; }
  const File& executables() const { return executables_; }

  /// As Function has them in jaxexp/runtime.h, but that weights are arguments, and that nobody counts the arguments.
  void compile() const;
  void compile(const std::map<std::string, std::int64_t>& sizes) const;
  void keep_code(const std::filesystem::path& path) const;  // save_executable()
  std::string why_compiled() const;
  Arrays call(const Arrays& arguments) const;

  /// Whether the module takes an argument.
  bool uses(std::size_t argument) const { return std::ranges::binary_search(kept_, argument); }
  /// Whether numbers are on the devices, and divided there, as an argument has to be. Throws RunError where compiling
  /// fails.
  bool has_in_place(std::size_t argument, const Numbers& numbers) const;
  /// Puts a weight where calls need it, none of which donates it. Throws RunError.
  std::shared_ptr<const Numbers> put(std::size_t argument, const Numbers& numbers) const;

 private:
  using Buffers = std::vector<std::shared_ptr<const Buffer>>;  // one for each device

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

  Variables check(const Arrays& arguments) const;
  const Compiled& compiled() const;                                        // where no dimension is symbolic
  std::shared_ptr<const Compiled> compiled(const Variables& sizes) const;  // where one is
  Compiled make_compiled(const Variables& sizes) const;
  const Tiling& tiling(std::size_t argument) const;
  void keep_code(const Compiled& compiled, const Variables& sizes, const std::filesystem::path& path) const;
  StaticModule static_module(const Variables& sizes) const;
  Executable make_executable(const StaticModule& module) const;
  std::string options() const;
  wire::Entries conditions(const Variables& sizes, const StaticModule& module) const;
  void explain(std::string_view error) const;
  Buffers make_platform_index() const;
  void ask_for_shardings(Compiled& compiled) const;
  bool is_in_place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const;
  Buffers place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const;
  std::shared_ptr<const Numbers> result(const Executable::Outputs& outputs, std::size_t index, const Tiling& tiling,
                                        const Variables& variables) const;
  const Device& device(std::size_t index) const { return client_->devices()[devices_[index]]; }

  std::shared_ptr<const void> owner_;
  std::shared_ptr<const Client> client_;
  Artifact artifact_;
  std::vector<std::size_t> devices_;
  std::vector<Parameter> arguments_, results_;
  std::vector<std::uint32_t> kept_;
  Program program_;
  File executables_;

  mutable std::mutex mutex_;
  mutable std::unique_ptr<const Compiled> compiled_;
  std::set<std::string_view> variables_;  // those of the arguments' symbolic dimensions
  mutable BySizes<Compiled> by_sizes_;
};

}  // namespace jaxexp::runtime

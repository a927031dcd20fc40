// A function of an artifact, on devices of a plugin.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "jaxexp/artifact.h"
#include "runtime/array/numbers.h"
#include "runtime/plugin/executable.h"
#include "runtime/program/program.h"
#include "runtime/signature/parameter.h"

namespace jaxexp::runtime {

/// May be called by several threads at once.
class Callable {
 public:
  /// `devices` are indices of the client's devices; none: the first ones. Throws RunError.
  Callable(std::shared_ptr<const Client> client, Artifact artifact, std::vector<std::size_t> devices);

  const Artifact& artifact() const { return artifact_; }
  const std::shared_ptr<const Client>& client() const { return client_; }
  const std::vector<std::size_t>& devices() const { return devices_; }
  const std::vector<Parameter>& arguments() const { return arguments_; }
  const std::vector<Parameter>& results() const { return results_; }

  /// Compiles a function without symbolic dimensions. Throws RunError.
  void compile() const;

  /// Begins to compute. Compiles first where that is still to be done. Throws RunError.
  std::vector<std::shared_ptr<const Numbers>> call(const std::vector<std::shared_ptr<const Numbers>>& arguments) const;

 private:
  using Buffers = std::vector<std::shared_ptr<const Buffer>>;  // one for each device

  struct Compiled {
    Executable executable;
    std::vector<Tiling> arguments, results;
    Buffers platform_index;  // none where the main function takes no index
  };

  Variables check(const std::vector<std::shared_ptr<const Numbers>>& arguments) const;
  const Compiled& compiled() const;
  Executable make_executable() const;
  void explain(std::string_view error) const;
  Buffers make_platform_index() const;
  void ask_for_shardings(Compiled& compiled) const;
  Buffers place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const;
  std::shared_ptr<const Numbers> result(const Executable::Outputs& outputs, std::size_t index, const Tiling& tiling,
                                        const Variables& variables) const;
  const Device& device(std::size_t index) const { return client_->devices()[devices_[index]]; }

  std::shared_ptr<const Client> client_;
  Artifact artifact_;
  std::vector<std::size_t> devices_;
  std::vector<Parameter> arguments_, results_;
  std::vector<std::uint32_t> kept_;
  Program program_;

  mutable std::mutex mutex_;
  mutable std::unique_ptr<const Compiled> compiled_;
};

}  // namespace jaxexp::runtime

// A compiled module on its devices.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/plugin/buffer.h"
#include "runtime/plugin/hlo_shardings.h"

namespace jaxexp::runtime {

/// `size` elements, which are in here up to `N`. Pointers and numbers have any value at first.
template <class T, std::size_t N>
class Few {
 public:
  explicit Few(std::size_t size) : more_(size > N ? size : 0), all_(size > N ? more_.data() : few_.data(), size) {}
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;

  T& operator[](std::size_t i) { return all_[i]; }
  std::span<T> all() { return all_; }

 private:
  std::array<T, N> few_;
  std::vector<T> more_;
  std::span<T> all_;
};

class Executable {
 public:
  /// Compiles MLIR, as bytecode or as text. `options` is a serialized xla.CompileOptionsProto. Throws RunError.
  Executable(std::shared_ptr<const Client> client, std::span<const std::uint8_t> module, std::string_view options);

  /// Takes code that `serialize` returned of the same plugin on the same machine. Throws RunError.
  static Executable from_code(std::shared_ptr<const Client> client, std::span<const std::uint8_t> code);

  /// The code. Throws RunError, also where this was made of code: then it may not be complete.
  std::vector<std::uint8_t> serialize() const;

  /// How parameters and results are divided, also where the module leaves it to the compiler. Throws RunError.
  HloShardings shardings() const;

  std::size_t nr_results() const { return results_; }

  /// Begins to compute; the results are there when their buffers are. Several threads may run one executable. Arguments
  /// and results are those of the first device, then those of the second one, ... in the order of the device
  /// assignment. Arguments that the module donates are deleted, except for those that are named. With `waits`, all of
  /// it has been computed at the end. Throws RunError.
  void run(std::span<PJRT_Buffer* const> arguments, std::size_t nr_devices, std::span<const std::int64_t> keep,
           std::span<std::shared_ptr<const Buffer>> results, bool waits) const;

 private:
  Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* loaded);

  std::shared_ptr<const Client> client_;  // has to outlive the others
  Owned<PJRT_LoadedExecutable> loaded_;
  Owned<PJRT_Executable> executable_;
  std::size_t results_;
  std::unique_ptr<std::atomic<bool>> has_run_ = std::make_unique<std::atomic<bool>>(false);
};

}  // namespace jaxexp::runtime

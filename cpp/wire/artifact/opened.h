// An artifact, or an image and its modules, that passed every check except the comparison of modules with their
// digests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exported_generated.h"
#include "wire/artifact/trailer.h"
#include "wire/exported/verify.h"

namespace jaxexp::wire {

/// Keeps views into the buffers.
class Opened {
 public:
  using Bytes = std::span<const std::uint8_t>;

  /// Where there are modules, the buffer is an image of an artifact that they were cut out of, and there is one for
  /// each function, the primal first. Throws Error.
  explicit Opened(Bytes buffer, std::span<const Bytes> modules = {})
      : Opened(buffer, modules, Trailer::read(buffer, !modules.empty())) {}

  /// The same with a trailer that was read already.
  Opened(Bytes buffer, std::span<const Bytes> modules, std::optional<Trailer> trailer);

  /// For an artifact whose tables are known to pass the checks. Throws Error where trailer or modules do not fit them.
  Opened(const Trailer& trailer, const schema::Exported& root, std::span<const Bytes> modules);

  const schema::Exported& root() const { return *root_; }
  const std::optional<Trailer>& trailer() const { return trailer_; }

  /// Where its tables are, as far as they were looked at.
  const Extent& tables() const { return tables_; }

  /// The module of a function, which was not compared with its digest.
  Bytes module(const schema::Exported& exported, std::size_t order) const {
    if (!modules_.empty()) return modules_[order];
    return {exported.mlir_module_serialized()->Data(), exported.mlir_module_serialized()->size()};
  }

  /// Whether the module of a function was compared with its digest, or has none.
  bool is_module_checked(std::size_t order) const { return !trailer_ || (checked_modules_ & bit(order)) != 0; }

  /// Compares it, unless that was done before. Throws Error.
  void check_module(const schema::Exported& exported, std::size_t order) const;

 private:
  /// The modules of the few functions beyond 64 are compared each time.
  static std::uint64_t bit(std::size_t order) { return order < 64 ? std::uint64_t{1} << order : 0; }

  std::optional<Trailer> trailer_;
  std::vector<Bytes> modules_;  // of an image
  const schema::Exported* root_;
  Extent tables_{};
  mutable std::atomic<std::uint64_t> checked_modules_{0};
};

}  // namespace jaxexp::wire

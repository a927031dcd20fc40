// A buffer with an artifact in it that passed every check but one: whether modules are still what was written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "exported_generated.h"
#include "trailer.h"
#include "verify.h"

namespace jaxexp::wire {

/// Keeps views into the buffer.
class Opened {
 public:
  /// Throws Error.
  explicit Opened(std::span<const std::uint8_t> buffer) : Opened(buffer, Trailer::read(buffer)) {}

  /// The same with a trailer that was read already.
  Opened(std::span<const std::uint8_t> buffer, std::optional<Trailer> trailer);

  /// Of an artifact whose tables are known to pass the checks. Throws Error where the trailer does not fit them.
  Opened(const Trailer& trailer, const schema::Exported& root);

  const schema::Exported& root() const { return *root_; }
  const std::optional<Trailer>& trailer() const { return trailer_; }

  /// Where its tables are, as far as they were looked at.
  const Extent& tables() const { return tables_; }

  /// Whether the module of a function was compared with its digest, or has none.
  bool is_module_checked(std::size_t order) const { return !trailer_ || (checked_modules_ & bit(order)) != 0; }

  /// Compares it, where that was not done before. Throws Error.
  void check_module(const schema::Exported& exported, std::size_t order) const;

 private:
  /// Of the few functions beyond, the modules are compared each time.
  static std::uint64_t bit(std::size_t order) { return order < 64 ? std::uint64_t{1} << order : 0; }

  std::optional<Trailer> trailer_;
  const schema::Exported* root_;
  Extent tables_{};
  mutable std::atomic<std::uint64_t> checked_modules_{0};
};

}  // namespace jaxexp::wire

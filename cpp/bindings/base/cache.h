// What artifacts have in common: objects that were made before, found again by the bytes that describe them.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "bindings/base/nanobind.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

/// A bounded map from bytes to immutable Python objects. It starts over when it is full: a process that reads so many
/// different things gains nothing from keeping some of them.
class Cache {
 public:
  explicit Cache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// An invalid object where the key is unknown.
  nb::object find(std::string_view key) {
    nb::ft_lock_guard guard(mutex_);
    const auto found = objects_.find(key);
    return found == objects_.end() ? nb::object() : found->second;
  }

  /// `object_size` is how many bytes the object takes, roughly.
  void insert(std::string_view key, const nb::object& object, std::size_t object_size) {
    const std::size_t size = key.size() + overhead + object_size;
    if (size > max_bytes_ / 2) return;
    Objects forgotten;  // outlives the lock: dropping Python objects may run any code
    nb::ft_lock_guard guard(mutex_);
    if (bytes_ + size > max_bytes_) {
      forgotten.swap(objects_);
      bytes_ = 0;
    }
    if (objects_.try_emplace(std::string(key), object).second) bytes_ += size;
  }

 private:
  static constexpr std::size_t overhead = 128;  // the place in the map, roughly

  using Objects = std::unordered_map<std::string, nb::object, wire::SeededHash, std::equal_to<>>;

  nb::ft_mutex mutex_;
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  Objects objects_;
};

}  // namespace jaxexp::bindings

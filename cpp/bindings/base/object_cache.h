// What was made of Python objects before, found again by identity, then by hash and equality.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// A bounded map from immutable Python objects to values. It keeps the objects alive, so that no other object gets the
/// address of one of them, and starts over when it is full.
template <class Value>
class ObjectCache {
 public:
  explicit ObjectCache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Null where there is none. An object that cannot be hashed or compared equals nothing.
  std::shared_ptr<const Value> find(nb::handle object) {
    {
      nb::ft_lock_guard guard(mutex_);
      if (const auto found = content_.entries.find(object.ptr()); found != content_.entries.end())
        return found->second.value;
    }
    const std::optional<Py_hash_t> hash = hash_of(object);
    if (!hash) return {};
    for (const nb::object& candidate : candidates(*hash)) {
      if (!candidate.is_valid() || !is_equal(candidate, object)) continue;
      nb::ft_lock_guard guard(mutex_);
      const auto found = content_.entries.find(candidate.ptr());
      if (found != content_.entries.end()) return found->second.value;
    }
    return {};
  }

  /// `size` is how many bytes the object and the value take, roughly.
  void insert(nb::handle object, std::shared_ptr<const Value> value, std::size_t size) {
    size += overhead;
    const std::optional<Py_hash_t> hash = hash_of(object);
    if (!hash || size > max_bytes_ / 2) return;
    Content forgotten;  // outlives the lock: dropping Python objects may run any code
    nb::ft_lock_guard guard(mutex_);
    if (bytes_ + size > max_bytes_) {
      std::swap(forgotten, content_);
      bytes_ = 0;
    }
    if (!content_.entries.try_emplace(object.ptr(), Entry{nb::borrow(object), std::move(value)}).second) return;
    bytes_ += size;
    // The newest first. A hash says little (that of a tree knows no keys), so only some are compared.
    auto& same_hash = content_.by_hash[*hash];
    std::ranges::rotate(same_hash, same_hash.end() - 1);
    same_hash.front() = object.ptr();
  }

 private:
  static constexpr std::size_t overhead = 256;  // the places in the maps, roughly
  static constexpr std::size_t most_candidates = 4;

  struct Entry {
    nb::object object;
    std::shared_ptr<const Value> value;
  };
  struct Content {
    std::unordered_map<PyObject*, Entry> entries;
    std::unordered_map<Py_hash_t, std::array<PyObject*, most_candidates>> by_hash;  // of those in `entries`
  };

  std::array<nb::object, most_candidates> candidates(Py_hash_t hash) {
    std::array<nb::object, most_candidates> objects;
    nb::ft_lock_guard guard(mutex_);
    const auto found = content_.by_hash.find(hash);
    if (found != content_.by_hash.end())
      std::ranges::transform(found->second, objects.begin(), [](PyObject* object) { return nb::borrow(object); });
    return objects;
  }

  static std::optional<Py_hash_t> hash_of(nb::handle object) {
    const Py_hash_t hash = PyObject_Hash(object.ptr());
    if (hash != -1) return hash;
    forgive();
    return std::nullopt;
  }

  static bool is_equal(nb::handle one, nb::handle other) {
    const int equal = PyObject_RichCompareBool(one.ptr(), other.ptr(), Py_EQ);
    if (equal < 0) forgive();
    return equal > 0;
  }

  /// Errors of keys that users made are no reason to fail, but Ctrl-C is.
  static void forgive() {
    nb::python_error error;
    if (!error.matches(PyExc_Exception)) throw std::move(error);
  }

  nb::ft_mutex mutex_;
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  Content content_;
};

}  // namespace jaxexp::bindings

// Tables that were visited: those that are shared are checked once.
#pragma once

#include <cstdint>

#include "wire/base/flat_map.h"

namespace jaxexp::wire {

class Seen {
 public:
  /// Notes a table; returns whether it is a new one.
  template <class T>
  bool insert(const T& table) {
    return places_.insert(place(table)).second;
  }

  template <class T>
  bool contains(const T& table) const {
    return places_.contains(place(table));
  }

  bool empty() const { return places_.empty(); }

 private:
  template <class T>
  static std::uint64_t place(const T& table) {
    return reinterpret_cast<std::uintptr_t>(&table);
  }

  FlatMap<Nothing> places_;
};

/// Pairs of tables: those that are together in many places are looked at once.
class SeenPairs {
 public:
  /// `root` is where places are counted from.
  explicit SeenPairs(const void* root) : root_(static_cast<const char*>(root)) {}

  /// Notes a pair; returns whether it is a new one.
  template <class A, class B>
  bool insert(const A& a, const B& b) {
    return places_.insert(place(&a) << 32 | place(&b)).second;
  }

 private:
  /// A different one for each table: the lower half of its distance.
  std::uint64_t place(const void* table) const {
    return static_cast<std::uint32_t>(static_cast<const char*>(table) - root_);
  }

  const char* root_;
  FlatMap<Nothing> places_;
};

}  // namespace jaxexp::wire

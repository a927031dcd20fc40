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
  struct Nothing {};

  template <class T>
  static std::uint64_t place(const T& table) {
    return reinterpret_cast<std::uintptr_t>(&table);
  }

  FlatMap<Nothing> places_;
};

}  // namespace jaxexp::wire

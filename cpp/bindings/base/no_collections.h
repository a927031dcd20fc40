// Pausing Python's cyclic garbage collector.
#pragma once

#include <Python.h>

namespace jaxexp::bindings {

/// While it lives, thousands of new objects do not start one collection after another, all in vain. A collector that
/// was off before stays off.
class NoCollections {
 public:
  NoCollections() : enabled_(PyGC_Disable() != 0) {}
  ~NoCollections() {
    if (enabled_) PyGC_Enable();
  }
  NoCollections(const NoCollections&) = delete;
  NoCollections& operator=(const NoCollections&) = delete;

 private:
  bool enabled_;
};

}  // namespace jaxexp::bindings

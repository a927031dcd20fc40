// The check of a module's bytes, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/base/buffer.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::bindings {

inline void check_bytecode(nb::handle module) {
  const Buffer buffer(module);
  over(buffer.bytes().size(), [&] { wire::check_bytecode(buffer.bytes(), {nullptr, "mlir_module_serialized"}); });
}

}  // namespace jaxexp::bindings

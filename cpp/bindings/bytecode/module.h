// What the bytes of a module tell, for Python.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// Refuses what MLIR's reader cannot be trusted with.
void check_bytecode(nb::handle module);

/// A pair of dicts: kinds of operations, and targets of custom calls (None where they are not known), each with how
/// often it occurs. None for bytecode of a version that is not known here.
nb::object contents(nb::handle module);

/// The producer's name; None where the bytes are no MLIR bytecode.
nb::object module_producer(nb::handle module);

/// Whether one of these texts is in the bytes in which all names of a module are; in all of its bytes, where it is
/// damaged.
bool module_may_name(nb::handle module, const nb::args& names);

/// The producer, and as frozensets: dialects, full names of operations, kinds of attributes, and kinds of types.
nb::tuple module_head(nb::handle module);

}  // namespace jaxexp::bindings

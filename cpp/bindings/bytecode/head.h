// What the head of a module tells, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace jaxexp::bindings {

namespace nb = nanobind;

/// The producer's name; None where the bytes are no MLIR bytecode.
nb::object module_producer(nb::handle module);

/// Whether one of these texts is in the bytes in which all names of a module are; in all of its bytes, where it is
/// damaged.
bool module_may_name(nb::handle module, const nb::args& names);

/// The producer, and as frozensets: dialects, full names of operations, kinds of attributes, and kinds of types.
nb::tuple module_head(nb::handle module);

}  // namespace jaxexp::bindings

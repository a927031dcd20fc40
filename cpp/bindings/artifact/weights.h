// The weights of a trailer, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "wire/artifact/weights.h"

namespace jaxexp::bindings {

namespace nb = nanobind;

/// From a pair of lists: (name, size, content) of each file; (name, index of the file, size, digest) of each tensor.
wire::Weights to_weights(nb::handle pair);

/// The same pair.
nb::tuple from_weights(const wire::schema::Weights& weights);

}  // namespace jaxexp::bindings

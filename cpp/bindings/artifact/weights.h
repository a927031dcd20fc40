// The weights of a trailer, for Python.
#pragma once

#include "bindings/base/nanobind.h"
#include "wire/artifact/weights.h"

namespace jaxexp::bindings {

/// From three lists: (name, size, content) of each file; (name, index of the file, size, digest) of each tensor; (name,
/// index of the tensor) of each further name.
wire::Weights to_weights(nb::handle lists);

/// The same lists.
nb::tuple from_weights(const wire::schema::Weights& weights);

}  // namespace jaxexp::bindings

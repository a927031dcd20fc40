// From a chain of Exported (a function, its VJP, the VJP's VJP, ...) to the bytes of an artifact.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "bindings/codec/form.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::bindings {

namespace nb = nanobind;

/// The artifact as a bytearray, which is allocated once and into which every module is copied once. It has a trailer
/// where there are notes for one.
nb::object encode(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);

/// The same bytes as a list of buffers, in which the modules are views of what the chain holds.
nb::list encode_parts(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);

}  // namespace jaxexp::bindings

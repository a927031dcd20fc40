// From a chain of Exported (a function, its VJP, the VJP's VJP, ...) to the bytes of an artifact.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "wire/artifact/trailer.h"

namespace jaxexp::bindings {

namespace nb = nanobind;

/// What an artifact says in which slots. What is not set here is for the readers since JAX 0.9.1; their slots are
/// always written.
struct Form {
  /// Readers before 0.8.2 refuse all numbers but their own; later ones accept any, and go by the slots.
  std::uint16_t serialization_version = 12;  // what JAX 0.11.1 and newer write
  bool short_device_count = false;           // what readers before 0.8.2 know, beside the 32-bit one
  bool hlo_shardings = false;                // what readers before 0.9.0 know, beside NamedShardings
};

/// The artifact as a bytearray, which is allocated once and into which every module is copied once. It has a trailer
/// where there are notes for one.
nb::object encode(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);

/// The same bytes as a list of buffers, in which the modules are views of what the chain holds.
nb::list encode_parts(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);

}  // namespace jaxexp::bindings

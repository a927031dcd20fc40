// Modules apart from their artifact, for Python.
#pragma once

#include "bindings/base/nanobind.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

/// wire::cut, as bytes.
nb::object cut(nb::handle artifact);

/// wire::Joined, as a bytearray that is allocated once.
nb::object join(nb::handle image, nb::handle modules);

/// wire::digest, as bytes.
nb::object digest(nb::handle buffer);

/// Whether two buffers have the same bytes.
bool equal_bytes(nb::handle one, nb::handle other);

/// wire::Digester::update. Other threads run meanwhile, so only one may have the digester.
void update(wire::Digester& digester, nb::handle part);

/// wire::Digester::digest, as bytes.
nb::object digest_of_parts(const wire::Digester& digester);

}  // namespace jaxexp::bindings

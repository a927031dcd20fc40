// Digests, which are bytes in Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "bindings/base/nanobind.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

inline wire::Digest to_digest(nb::handle bytes) {
  const auto given = nb::cast<nb::bytes>(bytes);
  wire::Digest digest;
  if (given.size() != digest.size()) throw std::invalid_argument("a digest has 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(given.data()), digest.size(), digest.begin());
  return digest;
}

inline nb::bytes to_bytes(const wire::Digest& digest) { return nb::bytes(digest.data(), digest.size()); }

}  // namespace jaxexp::bindings

// From a chain of Exported (a function, its VJP, the VJP's VJP, ...) to the bytes of an artifact.
#pragma once

#include <memory>
#include <string_view>

#include "bindings/base/nanobind.h"
#include "bindings/codec/form.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::bindings {

/// The artifact as a bytearray, which is allocated once and into which every module is copied once. It has a trailer
/// where there are notes for one.
nb::object encode(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);

/// The same bytes in pieces, one after the other, in which the modules are views of what the chain holds. Large modules
/// are digested in a thread while the caller writes them, so damage in a loaded one is an error of the last piece.
class EncodedParts {
 public:
  EncodedParts(const nb::sequence& chain, std::string_view jax_version, const Form& form, const wire::Notes* notes);
  ~EncodedParts();
  EncodedParts(const EncodedParts&) = delete;
  EncodedParts& operator=(const EncodedParts&) = delete;

  /// Bytes or a memoryview. Throws nb::stop_iteration at the end.
  nb::object next();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jaxexp::bindings

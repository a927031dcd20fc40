// A serialized Exported in a caller's buffer: verified, described, decoded on demand.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string_view>

#include "convert/buffer.h"
#include "exported_generated.h"

namespace jaxexp {

class Artifact {
 public:
  /// Verifies all of it, VJPs included.
  explicit Artifact(nb::handle buffer);

  nb::dict decode() const;
  nb::object module() const;
  std::optional<Artifact> vjp() const;

  int serialization_version() const { return exported().serialization_version(); }
  nb::object jax_version() const;
  std::string_view writer() const;
  nb::str fun_name() const;
  std::uint32_t nr_devices() const;
  nb::tuple platforms() const;

 private:
  Artifact(std::shared_ptr<const Buffer> buffer, std::size_t order) : buffer_(std::move(buffer)), order_(order) {}

  /// The Exported that this is about. In a writable buffer, the bytes are verified again, for they may have changed.
  const wire::schema::Exported& exported() const;

  std::shared_ptr<const Buffer> buffer_;
  std::size_t order_;  // how many VJPs deep

  /// Null where the buffer is writable.
  const wire::schema::Exported* exported_ = nullptr;
};

}  // namespace jaxexp

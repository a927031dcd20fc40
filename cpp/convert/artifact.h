// A serialized Exported in a caller's buffer: verified, described, decoded on demand.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>
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
  std::span<const std::uint8_t> module_bytes() const;
  std::optional<Artifact> vjp() const;

  int serialization_version() const { return exported_->serialization_version(); }
  nb::object jax_version() const;
  std::string_view writer() const;
  nb::str fun_name() const;
  std::uint32_t nr_devices() const;
  nb::tuple platforms() const;
  nb::dict facts() const;
  /// What it says, for people (describe.cpp).
  nb::dict describe() const;

 private:
  Artifact(std::shared_ptr<const Buffer> buffer, const wire::schema::Exported& exported, std::size_t order)
      : buffer_(std::move(buffer)), exported_(&exported), order_(order) {}

  std::shared_ptr<const Buffer> buffer_;  // read-only, so what was verified stays true
  const wire::schema::Exported* exported_;
  std::size_t order_;  // how many VJPs deep
};

}  // namespace jaxexp

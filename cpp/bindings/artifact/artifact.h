// A serialized Exported in a caller's buffers: verified, described, decoded on demand.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/base/buffer.h"
#include "exported_generated.h"
#include "wire/artifact/opened.h"

namespace jaxexp::bindings {

class Artifact {
 public:
  /// Verifies all of it, VJPs included. Where there are modules (buffers), the buffer is an image without them.
  explicit Artifact(nb::handle buffer, nb::handle modules = nb::handle());

  nb::dict decode() const;
  nb::object module() const;
  /// The first call compares them with the trailer's digest.
  std::span<const std::uint8_t> module_bytes() const;
  nb::object unchecked_module() const;
  /// The same, unchecked, and the check by itself, for a caller that computes the digest anyway.
  std::span<const std::uint8_t> unchecked_module_bytes() const;
  std::size_t module_size() const;
  void check_module(const wire::Digest& found) const;
  std::optional<Artifact> vjp() const;
  /// How many bytes the artifact has, with its modules; those of the buffer where no trailer says where it ends.
  std::size_t size() const;

  int serialization_version() const { return exported_->serialization_version(); }
  nb::object jax_version() const;
  std::string_view writer() const;
  nb::str fun_name() const;
  std::uint32_t nr_devices() const;
  nb::tuple platforms() const;
  /// How many arguments and results the function has.
  std::pair<std::uint32_t, std::uint32_t> counts() const;
  /// Whether it was exported without the check of its platform.
  bool runs_anywhere() const;
  /// Where its module is, to tell whether two functions share one.
  std::pair<std::uintptr_t, std::size_t> module_place() const;
  /// What decides who can read it. `library_node` takes the auxiliary data of a node of a library, and returns its
  /// class and the keys of its children, or None; or it is None.
  nb::dict facts(const nb::object& library_node) const;
  /// What it says, for people (describe.cpp).
  nb::dict describe(const nb::object& library_node) const;
  nb::object trailer() const;
  /// Offset, size and digest of its module and those of its VJPs; those with a digest in the trailer are checked.
  nb::list modules() const;
  nb::object metadata() const;
  nb::object weights() const;

  /// What a function shares with its VJPs.
  struct Source {
    Source() = default;
    Source(nb::handle owner, nb::handle modules);
    const Buffer& module_buffer(std::size_t order) const { return modules.empty() ? *buffer : *modules[order]; }

    std::shared_ptr<const Buffer> buffer;                // read-only, so what was verified stays true
    const wire::FileBytes* file = nullptr;               // that the bytes are of, where it is read in parts
    std::span<const std::uint8_t> bytes;                 // of the buffer; what is behind the artifact included
    std::vector<std::shared_ptr<const Buffer>> modules;  // of an image
    std::optional<wire::Opened> opened;
  };
  /// For a source that is complete.
  explicit Artifact(std::shared_ptr<const Source> source)
      : source_(std::move(source)), exported_(&source_->opened->root()), order_(0) {}

  /// The fields of the Exported; sets `shareable` to whether all artifacts of the same metadata and weak types may
  /// share these objects.
  nb::dict decode_shared(bool& shareable) const;

 private:
  Artifact(std::shared_ptr<const Source> source, const wire::schema::Exported& exported, std::size_t order)
      : source_(std::move(source)), exported_(&exported), order_(order) {}

  std::shared_ptr<const Source> source_;
  const wire::schema::Exported* exported_;
  std::size_t order_;  // how many VJPs deep
};

}  // namespace jaxexp::bindings

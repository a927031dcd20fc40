// A serialized Exported in a caller's buffers: verified, described, decoded on demand.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/base/buffer.h"
#include "bindings/base/texts.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/later.h"
#include "exported_generated.h"
#include "wire/artifact/opened.h"
#include "wire/exported/generation.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {

using Facts = nb::typed<nb::dict, nb::str, nb::object>;

/// What define.cpp says of a method to Python is not said here again.
class Artifact {
 public:
  /// Verifies all of it, VJPs included. Where there are modules (buffers), the buffer is an image without them. Buffers
  /// that somebody may change are copied, unless `in_place` says that the caller sees to it that nobody does.
  explicit Artifact(nb::handle buffer, nb::handle modules = nb::handle(), bool in_place = false);

  Facts decode() const;
  using Attributes = Argument<nb::dict, nb::str, nb::any>;
  void complete(const Attributes& attributes) const;
  const Said& said() const { return decode_once().said; }
  bool is_decoded() const { return decoded_ && decoded_->values.is_valid(); }
  /// Decodes now what might be refused, or changed, later on. `asked` is what `later` says where that is known already.
  void prepare(const std::optional<Later>& asked = std::nullopt) const;
  nb::memoryview module() const { return source_->module_buffer(order_).part(module_bytes()); }
  /// The first call compares them with the trailer's digest.
  std::span<const std::uint8_t> module_bytes() const;
  nb::memoryview unchecked_module() const { return source_->module_buffer(order_).part(unchecked_module_bytes()); }
  /// The same, unchecked, and the check by itself, for a caller that computes the digest anyway.
  std::span<const std::uint8_t> unchecked_module_bytes() const;
  std::size_t module_size() const { return source_->opened->module(*exported_, order_).size(); }
  void check_module(const wire::Digest& found) const;
  std::optional<Artifact> vjp() const;
  bool has_vjp() const { return exported_->vjp() != nullptr; }
  std::size_t size() const;

  int serialization_version() const { return exported_->serialization_version(); }
  std::optional<nb::str> jax_version() const;
  std::string_view writer() const { return wire::writer(*exported_); }
  nb::str fun_name() const { return text(exported_->function_name()->string_view()); }
  std::optional<std::pair<nb::str, std::size_t>> origin() const;
  std::uint32_t nr_devices() const { return wire::device_count(*exported_); }
  nb::typed<nb::tuple, nb::str, nb::ellipsis> platforms() const;
  std::pair<std::uint32_t, std::uint32_t> counts() const;
  bool runs_anywhere() const;
  std::pair<std::uintptr_t, std::size_t> module_place() const;
  /// `library_node` takes the auxiliary data of a custom node, and returns its
  /// class and the keys of its children, or None; or it is None.
  Facts facts(const nb::object& library_node) const;
  Facts describe(const nb::object& library_node) const;
  std::optional<Facts> trailer() const;
  /// Needs an artifact without a trailer: of another one, parts may not be read.
  wire::Digest digest() const;
  /// Those with a digest in the trailer are checked.
  std::vector<std::tuple<std::ptrdiff_t, std::size_t, wire::Digest>> modules() const;
  std::optional<nb::typed<nb::dict, nb::str, nb::str>> metadata() const;
  TextsForPython texts_for_python() const { return to_python(wire::texts_of(*source_->opened)); }
  const nb::object& noted() const { return noted_; }
  void note(nb::object values) { noted_ = std::move(values); }
  bool has_cases_or_sizes() const;
  nb::tuple sizes() const;
  nb::tuple padded() const;
  std::optional<wire::Weights> weights() const;
  std::optional<wire::Cases> cases() const;

  /// What a function shares with its VJPs.
  struct Source {
    Source() = default;
    Source(nb::handle owner, nb::handle modules, bool in_place);
    const Buffer& module_buffer(std::size_t order) const { return modules.empty() ? *buffer : *modules[order]; }

    std::shared_ptr<const Buffer> buffer;                // constant, so what was verified stays true
    const wire::FileBytes* file = nullptr;               // that the bytes are of, where it is read in parts
    std::span<const std::uint8_t> bytes;                 // of the buffer; what is behind the artifact included
    std::vector<std::shared_ptr<const Buffer>> modules;  // of an image
    std::optional<wire::Opened> opened;
  };
  /// For a source that is complete.
  explicit Artifact(std::shared_ptr<const Source> source);

  /// What was made of the metadata, if it was.
  struct Decoded {
    nb::object names, values;  // of the fields: two tuples, which are smaller than a dict
    Said said;
    /// Whether all artifacts of the same metadata and weak types may share these objects. Known when they are made, or
    /// before where `later` says that they may wait.
    bool is_shareable = false;
  };
  /// For artifacts that are prepared. Those of the same metadata and weak types take what another one has, so that what
  /// is made for one of them is there for all.
  const std::shared_ptr<Decoded>& decoded() const { return decoded_; }
  void share(std::shared_ptr<Decoded> decoded) { decoded_ = std::move(decoded); }

 private:
  Later later() const;
  const Decoded& decode_once() const;
  Artifact(std::shared_ptr<const Source> source, const wire::schema::Exported& exported, std::size_t order)
      : source_(std::move(source)), exported_(&exported), order_(order) {}

  std::shared_ptr<const Source> source_;
  const wire::schema::Exported* exported_;
  std::size_t order_;  // how many VJPs deep
  mutable std::shared_ptr<Decoded> decoded_;
  nb::object noted_ = nb::none();
};

/// Makes an Exported of each artifact. Its fields are decoded when somebody looks at them.
class Functions {
 public:
  /// `makes` has what makes objects: `Exported`, `LoadedVjp` and `metadata_from_json`.
  explicit Functions(nb::handle makes);

  /// Of an artifact that is prepared.
  nb::object function(Artifact artifact) const;
  /// Of the artifact in a buffer, which is verified and prepared.
  nb::object read(nb::handle buffer) const;

 private:
  nb::object exported_, loaded_vjp_, metadata_from_json_;
  nb::object artifact_name_, get_vjp_name_, nothing_;
};

}  // namespace jaxexp::bindings

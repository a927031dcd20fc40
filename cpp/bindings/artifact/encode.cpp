// Runs the encoder over a chain and lays metadata and modules out behind each other.
#include "bindings/artifact/encode.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "bindings/artifact/artifact.h"
#include "bindings/base/buffer.h"
#include "bindings/base/errors.h"
#include "bindings/base/owned.h"
#include "bindings/codec/encoder.h"
#include "wire/exported/chain.h"
#include "wire/exported/check.h"
#include "wire/exported/limits.h"

namespace jaxexp::bindings {
namespace {

/// The bytes of a function's module, and what keeps them where they are.
class Module {
 public:
  Module(nb::handle exported, const JaxRefs::Names& names) {
    // Most functions that are written again were loaded. Their modules are read here without calling Python.
    const nb::object fields = nb::steal(PyObject_GenericGetDict(exported.ptr(), nullptr));
    if (!fields.is_valid()) PyErr_Clear();
    const auto field = [&](const nb::object& name) {
      return fields.is_valid() ? PyDict_GetItemWithError(fields.ptr(), name.ptr()) : nullptr;
    };
    PyObject* const artifact = field(names.mlir_module_serialized) ? nullptr : field(names._artifact);
    if (artifact && nb::try_cast(nb::handle(artifact), loaded_)) {
      artifact_ = nb::borrow(artifact);
      bytes_ = loaded_->unchecked_module_bytes();
    } else {
      buffer_ = std::make_unique<Buffer>(nb::object(exported.attr(names.mlir_module_serialized)));
      bytes_ = buffer_->bytes();
    }
  }

  std::span<const std::uint8_t> bytes() const { return bytes_; }

  /// A read-only memoryview of the bytes.
  nb::object view() const { return buffer_ ? buffer_->part(bytes_) : loaded_->module(); }

  /// A module that is damaged must not be written as if it were right.
  void check(const wire::Digest& found) const {
    if (loaded_) loaded_->check_module(found);
  }
  void check() const {
    if (loaded_) loaded_->module_bytes();
  }

 private:
  nb::object artifact_;
  const Artifact* loaded_ = nullptr;  // in artifact_
  std::unique_ptr<Buffer> buffer_;    // where there is no artifact
  std::span<const std::uint8_t> bytes_;
};

/// A chain that is laid out, with everything that its pieces are views of.
class Encoded {
 public:
  Encoded(const nb::sequence& chain, std::string_view jax_version, const Form& form, const wire::Notes* notes)
      : refs_(jax_refs()), writer_(512 + 64 * arguments(chain)) {
    const std::size_t size = nb::len(chain);
    if (size == 0 || size > wire::max_vjp_order + 1)
      throw NotSerializable({nullptr, "chain"}, "there have to be 1 to " + std::to_string(wire::max_vjp_order + 1) +
                                                    " functions (a primal and its VJPs), found " +
                                                    std::to_string(size));
    wire::Notes all_notes;
    if (notes) all_notes = *notes;
    Encoder encoder(*refs_, writer_, form, notes ? &all_notes : nullptr);
    Offset<schema::Exported> exported;
    for (std::size_t i = size; i-- > 0;) {
      const nb::object object = chain[i];
      modules_.emplace_back(object, refs_->names);
      const std::string path = wire::path_in_chain(i);
      exported = encoder.exported(object, path, modules_.back().bytes(), jax_version, exported);
    }
    layout_ = writer_.finish(exported, notes != nullptr);
    // What a reader would refuse is not written. The check reads no modules, which are not there yet.
    try {
      wire::check(*flatbuffers::GetRoot<schema::Exported>(layout_.metadata.data()), layout_.size);
    } catch (const wire::Error& error) {
      throw NotSerializable({nullptr, error.path}, "the format holds " + error.expected + ", found " + error.found);
    }
    if (!notes) return;
    trailer_.emplace(all_notes, layout_.modules);
    writer_.set_end(this->size());
  }

  std::size_t size() const { return layout_.size + trailer_size(); }
  std::size_t functions() const { return layout_.modules.size(); }
  std::span<const std::uint8_t> metadata() const { return layout_.metadata; }
  std::span<const std::uint8_t> module(std::size_t order) const { return layout_.modules[order]; }
  nb::object module_view(std::size_t order) const { return owner(order).view(); }

  /// To be called for each function once, in any order, before the trailer is asked for.
  void digest_module(std::size_t order) {
    const auto bytes = module(order);
    if (trailer_)
      set_digest(order, over(bytes.size(), [&] { return wire::digest(bytes); }));
    else
      owner(order).check();
  }
  void copy_module(std::size_t order, std::uint8_t* target) {
    const auto bytes = module(order);
    if (trailer_) {
      set_digest(order, over(bytes.size(), [&] { return wire::copy_and_digest(target, bytes); }));
    } else if (owner(order).check(); !bytes.empty()) {
      over(bytes.size(), [&] { return std::memcpy(target, bytes.data(), bytes.size()); });
    }
  }

  std::size_t trailer_size() const { return trailer_ ? trailer_->size() : 0; }
  void copy_trailer(std::uint8_t* target) const {
    if (trailer_) trailer_->finish(layout_.metadata, target);
  }

 private:
  /// For the initial size of the writer's memory.
  std::size_t arguments(const nb::sequence& chain) const {
    return nb::len(chain) == 0 ? 0 : nb::len(nb::object(chain[0].attr(refs_->names.in_avals)));
  }

  const Module& owner(std::size_t order) const { return modules_[modules_.size() - 1 - order]; }

  void set_digest(std::size_t order, const wire::Digest& digest) {
    owner(order).check(digest);
    trailer_->set_module_digest(order, digest);
  }

  std::shared_ptr<const JaxRefs> refs_;
  wire::Writer writer_;
  std::vector<Module> modules_;  // innermost VJP first
  wire::Layout layout_;
  std::optional<wire::TrailerWriter> trailer_;
};

}  // namespace

nb::object encode(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes) {
  Encoded encoded(chain, jax_version, form, notes);
  const nb::object result = owned(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(encoded.size())));
  auto* target = reinterpret_cast<std::uint8_t*>(PyByteArray_AS_STRING(result.ptr()));
  target = std::ranges::copy(encoded.metadata(), target).out;
  for (std::size_t order = 0; order < encoded.functions(); ++order) {
    const std::size_t size = encoded.module(order).size();
    flatbuffers::WriteScalar(target, static_cast<flatbuffers::uoffset_t>(size));
    target += sizeof(flatbuffers::uoffset_t);
    encoded.copy_module(order, target);
    target = std::fill_n(target + size, wire::padding(size), std::uint8_t{0});
  }
  encoded.copy_trailer(target);
  return result;
}

nb::list encode_parts(nb::sequence chain, std::string_view jax_version, const Form& form, const wire::Notes* notes) {
  Encoded encoded(chain, jax_version, form, notes);
  nb::list parts = new_list();
  // What stands between two modules: the padding of the one, the length of the next.
  std::string between;
  const auto add = [&](std::span<const std::uint8_t> bytes) { between.append(bytes.begin(), bytes.end()); };
  add(encoded.metadata());
  for (std::size_t order = 0; order < encoded.functions(); ++order) {
    encoded.digest_module(order);
    const std::size_t size = encoded.module(order).size();
    std::uint8_t length[sizeof(flatbuffers::uoffset_t)];
    flatbuffers::WriteScalar(length, static_cast<flatbuffers::uoffset_t>(size));
    add(length);
    parts.append(nb::bytes(between.data(), between.size()));
    parts.append(encoded.module_view(order));
    between.assign(wire::padding(size), '\0');
  }
  const std::size_t end = between.size();
  between.resize(end + encoded.trailer_size());
  encoded.copy_trailer(reinterpret_cast<std::uint8_t*>(between.data()) + end);
  if (!between.empty()) parts.append(nb::bytes(between.data(), between.size()));
  return parts;
}

}  // namespace jaxexp::bindings

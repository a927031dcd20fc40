// From a chain of Exported (a function, its VJP, the VJP's VJP, ...) to the bytes of an artifact: runs the encoder over
// it, and lays metadata and modules out behind each other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/artifact/artifact.h"
#include "bindings/artifact/noted.h"
#include "bindings/base/buffer.h"
#include "bindings/base/define.h"
#include "bindings/base/errors.h"
#include "bindings/base/objects.h"
#include "bindings/codec/encoder.h"
#include "wire/artifact/apart.h"
#include "wire/artifact/trailer.h"
#include "wire/base/memory.h"
#include "wire/exported/check.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

/// What a function says beside its fields. Where it was loaded, its artifact says it.
Said said_by(const Attributes& function, const Artifact* artifact, const JaxRefs::Names& names) {
  const nb::object facts = function.if_there(names._facts);
  if (!facts.is_valid()) return artifact ? artifact->said() : Said();
  const auto fact = [&](const nb::object& name) {
    const nb::object found = facts.attr(name);
    return found.is_none() ? nb::object() : found;
  };
  const auto tree = [&](const nb::object& name) {
    const nb::object found = fact(name);
    return found.is_valid() ? nb::object(found.attr(names.written)) : found;
  };
  return {fact(names.weak_arguments), fact(names.weak_results), tree(names.in_tree), tree(names.out_tree)};
}

/// A function of a chain: its attributes, the bytes of its module, and what keeps these where they are.
class Function {
 public:
  Function(nb::object exported, const JaxRefs::Names& names) : exported_(std::move(exported)), attributes_(exported_) {
    // Most functions that are written again were loaded. Their modules are read here without calling Python.
    const nb::object artifact = attributes_.if_there(names._artifact);
    const Artifact* loaded = nullptr;
    if (artifact.is_valid() && !nb::try_cast(artifact, loaded)) loaded = nullptr;
    said_ = said_by(attributes_, loaded, names);
    if (loaded && !attributes_.if_there(names.mlir_module_serialized).is_valid()) {
      artifact_ = artifact;
      loaded_ = loaded;
      bytes_ = loaded_->unchecked_module_bytes();
    } else {
      buffer_ = std::make_unique<Buffer>(attributes_[names.mlir_module_serialized]);
      bytes_ = buffer_->bytes();
    }
  }

  const Attributes& attributes() const { return attributes_; }
  const Said& said() const { return said_; }

  std::span<const std::uint8_t> bytes() const { return bytes_; }

  /// A read-only memoryview of the bytes, which are not checked.
  nb::object view() const { return buffer_ ? buffer_->part(bytes_) : loaded_->unchecked_module(); }

  /// A module that is damaged must not be written as if it were right.
  void check(const wire::Digest& found) const {
    if (loaded_) loaded_->check_module(found);
  }
  void check() const {
    if (loaded_) loaded_->module_bytes();
  }

 private:
  nb::object exported_, artifact_;
  Attributes attributes_;
  Said said_;
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
      const Function& function = functions_.emplace_back(nb::object(chain[i]), refs_->names);
      const std::string path = wire::path_in_chain(i);
      exported =
          encoder.exported(function.attributes(), function.said(), path, function.bytes(), jax_version, exported);
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

  bool has_trailer() const { return trailer_.has_value(); }
  /// For each function one of these three is to be called once, in any order, before the trailer is asked for.
  void set_digest(std::size_t order, const wire::Digest& digest) {
    owner(order).check(digest);
    trailer_->set_module_digest(order, digest);
  }
  void check_module(std::size_t order) const { owner(order).check(); }
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

  const Function& owner(std::size_t order) const { return functions_[functions_.size() - 1 - order]; }

  std::shared_ptr<const JaxRefs> refs_;
  wire::Writer writer_;
  std::vector<Function> functions_;  // innermost VJP first
  wire::Layout layout_;
  std::optional<wire::TrailerWriter> trailer_;
};

using Chain = nb::typed<nb::sequence, nb::object>;

/// The bytearray is allocated once, and every module is copied into it once.
nb::bytearray encode(const Chain& chain, std::string_view jax_version, const Form& form, const wire::Notes* notes) {
  Encoded encoded(chain, jax_version, form, notes);
  auto result = owned<nb::bytearray>(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(encoded.size())));
  auto* target = reinterpret_cast<std::uint8_t*>(PyByteArray_AS_STRING(result.ptr()));
  wire::in_large_pages({target, encoded.size()});
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

/// The same bytes in pieces, in which the modules are views of what the chain holds. Large modules are digested in a
/// thread while the caller writes them, so damage in a loaded one is an error of the last piece.
class EncodedParts {
 public:
  EncodedParts(const Chain& chain, std::string_view jax_version, const Form& form, const wire::Notes* notes)
      : encoded_(chain, jax_version, form, notes) {
    // What stands between two modules: the padding of the one, the length of the next.
    const auto add = [&](std::span<const std::uint8_t> bytes) { between_.append(bytes.begin(), bytes.end()); };
    add(encoded_.metadata());
    std::size_t bytes_of_modules = 0;
    for (std::size_t order = 0; order < encoded_.functions(); ++order) {
      if (!encoded_.has_trailer()) encoded_.check_module(order);
      const std::size_t size = encoded_.module(order).size();
      bytes_of_modules += size;
      std::uint8_t length[sizeof(flatbuffers::uoffset_t)];
      flatbuffers::WriteScalar(length, static_cast<flatbuffers::uoffset_t>(size));
      add(length);
      parts_.push_back(nb::bytes(between_.data(), between_.size()));
      parts_.push_back(encoded_.module_view(order));
      between_.assign(wire::padding(size), '\0');
    }
    if (encoded_.has_trailer()) begin_digests(bytes_of_modules);
  }

  ~EncodedParts() { is_in_vain_ = true; }
  EncodedParts(const EncodedParts&) = delete;
  EncodedParts& operator=(const EncodedParts&) = delete;

  /// Bytes or a memoryview. Throws nb::stop_iteration at the end.
  nb::object next() {
    if (next_ < parts_.size()) return std::move(parts_[next_++]);
    if (next_++ > parts_.size()) throw nb::stop_iteration();
    end_digests();
    const std::size_t end = between_.size();
    between_.resize(end + encoded_.trailer_size());
    encoded_.copy_trailer(reinterpret_cast<std::uint8_t*>(between_.data()) + end);
    if (between_.empty()) throw nb::stop_iteration();
    return nb::bytes(between_.data(), between_.size());
  }

 private:
  /// Modules are read twice, by this and by whoever writes them: at the same time, where they are large.
  void begin_digests(std::size_t size) {
    digests_.resize(encoded_.functions());
    // With both, it is deferred where the system gives no thread.
    const auto when = size < worth_releasing_gil ? std::launch::deferred : std::launch::async | std::launch::deferred;
    made_ = std::async(when, [this] {
      for (std::size_t order = 0; order < digests_.size(); ++order) {
        wire::Digester digester;
        for (auto bytes = encoded_.module(order); !bytes.empty() && !is_in_vain_;) {
          const auto part = bytes.first(std::min(worth_releasing_gil, bytes.size()));
          digester.update(part);
          bytes = bytes.subspan(part.size());
        }
        digests_[order] = digester.digest();
      }
    });
  }

  void end_digests() {
    if (!made_.valid()) return;
    if (made_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      const Unlocked unlocked;
      made_.wait();
    }
    made_.get();
    for (std::size_t order = 0; order < digests_.size(); ++order) encoded_.set_digest(order, digests_[order]);
  }

  Encoded encoded_;
  std::vector<nb::object> parts_;
  std::size_t next_ = 0;
  std::string between_;
  std::vector<wire::Digest> digests_;
  std::atomic<bool> is_in_vain_ = false;  // where the caller has given up
  std::future<void> made_;                // ends before what it reads and writes
};

nb::bytes with_notes(HasBuffer artifact, const std::function<void(wire::Notes&)>& change) {
  const auto buffer = stable(artifact, Buffer::alignment, /*in_parts=*/false, /*is_kept=*/true);
  const auto bytes = over(buffer->bytes().size(), [&] { return wire::with_notes(buffer->bytes(), change); });
  return nb::bytes(bytes.data(), bytes.size());
}

using Metadata = std::map<std::string, std::string>;

}  // namespace

void define_encoding(nb::module_& m) {
  nb::class_<Form>(m, "Form", "Which slots an artifact fills; by default, those that today's readers know.")
      .def(nb::init<>())
      .def(nb::init<std::uint16_t, bool, bool>(), "serialization_version"_a, "short_device_count"_a, "hlo_shardings"_a);
  nb::class_<wire::Notes>(m, "Notes", "What a trailer says that is not told from the functions.")
      .def(
          "__init__",
          [](wire::Notes* notes, std::string writer, const Metadata& metadata,
             const std::optional<nb::typed<nb::object, wire::Weights>>& weights, std::optional<wire::Cases> cases,
             const std::vector<wire::Sizes>& sizes, const std::vector<std::string>& padded) {
            std::optional<wire::Weights> beside;
            if (weights)
              beside = {to_vector<wire::Weights::File>((*weights)[0]), to_vector<wire::Weights::Tensor>((*weights)[1]),
                        to_vector<wire::Weights::OtherName>((*weights)[2])};
            new (notes) wire::Notes{std::move(writer),
                                    {metadata.begin(), metadata.end()},
                                    std::move(beside),
                                    sizes,
                                    {},
                                    {},
                                    std::move(cases),
                                    padded};
          },
          "writer"_a, "metadata"_a, "weights"_a = nb::none(), "cases"_a = nb::none(),
          "sizes"_a = std::vector<wire::Sizes>(), "padded"_a = std::vector<std::string>(),
          "Weights are files (name, size, content), tensors (name, index of the file, size, digest), and other names of "
          "tensors (name, index of the tensor). Cases are as `Artifact.cases` returns them.");
  m.def("encode", &encode, "chain"_a, "jax_version"_a, "form"_a, "notes"_a.none(),
        "The bytes of a function and its VJPs, in this order; with a trailer where there are notes.");
  m.def(
      "with_cases",
      [](HasBuffer artifact, std::optional<wire::Cases> cases) {
        return with_notes(artifact, [&](wire::Notes& notes) { notes.cases = std::move(cases); });
      },
      "artifact"_a, "cases"_a.none(), "An artifact with these cases in the place of its own.");
  m.def(
      "with_metadata",
      [](HasBuffer artifact, const Metadata& metadata) {
        return with_notes(artifact,
                          [&](wire::Notes& notes) { notes.metadata.assign(metadata.begin(), metadata.end()); });
      },
      "artifact"_a, "metadata"_a, "An artifact with this metadata in the place of its own; values are JSON.");
  nb::class_<EncodedParts>(m, "EncodedParts",
                           "What `encode` returns, in pieces; those of the modules are views, not copies.")
      .def(nb::init<const Chain&, std::string_view, const Form&, const wire::Notes*>(), "chain"_a, "jax_version"_a,
           "form"_a, "notes"_a.none())
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> EncodedParts"))
      .def("__next__", &EncodedParts::next, nb::sig("def __next__(self) -> bytes | memoryview"));
}

}  // namespace jaxexp::bindings

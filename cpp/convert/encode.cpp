// Runs the encoder over a chain and lays metadata and modules out behind each other.
#include "convert/encode.h"

#include <cstring>
#include <memory>

#include "convert/artifact.h"
#include "convert/buffer.h"
#include "convert/encoder.h"
#include "convert/errors.h"
#include "wire/check.h"
#include "wire/limits.h"

namespace jaxexp {
namespace {

/// The bytes of a function's module, and what keeps them where they are.
class Module {
 public:
  Module(nb::handle exported, const JaxRefs::Names& names) {
    // `Exported._module_buffer` says the same. Most functions that are written again were loaded, and then the module
    // can be had without a detour through Python.
    const nb::object fields = nb::steal(PyObject_GenericGetDict(exported.ptr(), nullptr));
    if (!fields.is_valid()) PyErr_Clear();
    const auto field = [&](const nb::object& name) {
      return fields.is_valid() ? PyDict_GetItemWithError(fields.ptr(), name.ptr()) : nullptr;
    };
    PyObject* const artifact = field(names.mlir_module_serialized) ? nullptr : field(names._artifact);
    if (const Artifact* loaded = nullptr; artifact && nb::try_cast(nb::handle(artifact), loaded)) {
      artifact_ = nb::borrow(artifact);
      bytes_ = loaded->module_bytes();
    } else {
      buffer_ = std::make_unique<Buffer>(nb::object(exported.attr(names._module_buffer)));
      bytes_ = buffer_->bytes();
    }
  }

  std::span<const std::uint8_t> bytes() const { return bytes_; }

  /// A read-only memoryview of the bytes.
  nb::object view() const { return buffer_ ? buffer_->part(bytes_) : nb::cast<const Artifact&>(artifact_).module(); }

 private:
  nb::object artifact_;
  std::unique_ptr<Buffer> buffer_;  // where there is no artifact
  std::span<const std::uint8_t> bytes_;
};

/// A chain that is laid out, with all that its pieces are views of.
struct Encoded {
  Encoded(const nb::sequence& chain, std::string_view jax_version, const Form& form)
      : refs(jax_refs()), writer(512 + 64 * arguments(chain)) {
    const std::size_t size = nb::len(chain);
    if (size == 0 || size > wire::max_vjp_order + 1)
      throw NotSerializable({nullptr, "chain"}, "there have to be 1 to " + std::to_string(wire::max_vjp_order + 1) +
                                                    " functions (a primal and its VJPs), found " +
                                                    std::to_string(size));
    Encoder encoder(*refs, writer, form);
    Offset<schema::Exported> exported;
    std::string path = "vjp";
    for (std::size_t i = 2; i < size; ++i) path += ".vjp";
    for (std::size_t i = size; i-- > 0;) {
      const nb::object object = chain[i];
      modules.emplace_back(object, refs->names);
      const std::string_view here = std::string_view(path).substr(0, i == 0 ? 0 : 4 * i - 1);
      exported = encoder.exported(object, here, modules.back().bytes(), jax_version, exported);
    }
    layout = writer.finish(exported);
    // What the reader refuses is not written. The check reads no module, and those are not there yet.
    try {
      wire::check(*flatbuffers::GetRoot<schema::Exported>(layout.metadata.data()), layout.size);
    } catch (const wire::Error& error) {
      throw NotSerializable({nullptr, error.path}, "the format holds " + error.expected + ", found " + error.found);
    }
  }

  /// For the initial size of the writer's memory.
  std::size_t arguments(const nb::sequence& chain) const {
    return nb::len(chain) == 0 ? 0 : nb::len(nb::object(chain[0].attr(refs->names.in_avals)));
  }

  std::shared_ptr<const JaxRefs> refs;
  wire::Writer writer;
  std::vector<Module> modules;  // innermost VJP first
  wire::Layout layout;
};

void copy(std::uint8_t* target, std::span<const std::uint8_t> source) {
  if (source.size() < worth_releasing_gil) {
    if (!source.empty()) std::memcpy(target, source.data(), source.size());
    return;
  }
  nb::gil_scoped_release release;
  std::memcpy(target, source.data(), source.size());
}

}  // namespace

nb::object encode(nb::sequence chain, std::string_view jax_version, const Form& form) {
  const Encoded encoded(chain, jax_version, form);
  const nb::object result =
      nb::steal(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(encoded.layout.size)));
  if (!result.is_valid()) throw nb::python_error();
  auto* target = reinterpret_cast<std::uint8_t*>(PyByteArray_AS_STRING(result.ptr()));
  copy(target, encoded.layout.metadata);
  target += encoded.layout.metadata.size();
  for (std::span<const std::uint8_t> module : encoded.layout.modules) {
    flatbuffers::WriteScalar(target, static_cast<flatbuffers::uoffset_t>(module.size()));
    target += sizeof(flatbuffers::uoffset_t);
    copy(target, module);
    target += module.size();
    std::memset(target, 0, wire::padding(module.size()));
    target += wire::padding(module.size());
  }
  return result;
}

nb::list encode_parts(nb::sequence chain, std::string_view jax_version, const Form& form) {
  const Encoded encoded(chain, jax_version, form);
  nb::list parts;
  // What stands between two modules: the padding of the one, the length of the next.
  std::string between(reinterpret_cast<const char*>(encoded.layout.metadata.data()), encoded.layout.metadata.size());
  auto owner = encoded.modules.rbegin();
  for (std::span<const std::uint8_t> module : encoded.layout.modules) {
    char length[sizeof(flatbuffers::uoffset_t)];
    flatbuffers::WriteScalar(length, static_cast<flatbuffers::uoffset_t>(module.size()));
    between.append(length, sizeof length);
    parts.append(nb::bytes(between.data(), between.size()));
    parts.append((owner++)->view());
    between.assign(wire::padding(module.size()), '\0');
  }
  if (!between.empty()) parts.append(nb::bytes(between.data(), between.size()));
  return parts;
}

}  // namespace jaxexp

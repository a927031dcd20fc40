// Reading artifacts where they lie.
#include "convert/artifact.h"

#include "convert/decoder.h"
#include "wire/check.h"
#include "wire/generation.h"
#include "wire/verify.h"

namespace jaxexp {
namespace {

/// The buffer itself where it can be read in place; a copy of it where its owner could change the bytes later (a
/// scratch buffer that is used again would turn a loaded function into another one), or where they are not aligned as
/// FlatBuffers are written.
std::shared_ptr<const Buffer> stable(nb::handle owner) {
  auto buffer = std::make_shared<const Buffer>(owner);
  const auto bytes = buffer->bytes();
  if (!buffer->writable() && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint32_t) == 0) return buffer;
  return std::make_shared<const Buffer>(nb::bytes(bytes.data(), bytes.size()));
}

const schema::Exported& verified(const Buffer& buffer) {
  const auto verify_and_check = [&]() -> const schema::Exported& {
    const schema::Exported& root = wire::verify(buffer.bytes());
    wire::check(root, buffer.bytes().size());
    return root;
  };
  if (buffer.bytes().size() < worth_releasing_gil) return verify_and_check();
  nb::gil_scoped_release release;
  return verify_and_check();
}

nb::str text(const flatbuffers::String& string) { return nb::str(string.c_str(), string.size()); }

}  // namespace

Artifact::Artifact(nb::handle buffer) : buffer_(stable(buffer)), exported_(&verified(*buffer_)), order_(0) {}

nb::dict Artifact::decode() const {
  const std::shared_ptr<const JaxRefs> refs = jax_refs();
  std::string path;
  for (std::size_t i = 0; i < order_; ++i) path += i == 0 ? "vjp" : ".vjp";
  return Decoder(*refs, *exported_, buffer_->bytes(), path).exported();
}

nb::object Artifact::module() const { return buffer_->part(module_bytes()); }

std::span<const std::uint8_t> Artifact::module_bytes() const {
  const auto& module = *exported_->mlir_module_serialized();
  return {module.Data(), module.size()};
}

std::optional<Artifact> Artifact::vjp() const {
  const schema::Exported* vjp = exported_->vjp();
  if (!vjp) return std::nullopt;
  return Artifact(buffer_, *vjp, order_ + 1);
}

nb::object Artifact::jax_version() const {
  const auto* version = exported_->jax_version();
  return version ? nb::object(text(*version)) : nb::none();
}

std::string_view Artifact::writer() const { return wire::writer(*exported_); }

nb::str Artifact::fun_name() const { return text(*exported_->function_name()); }

std::uint32_t Artifact::nr_devices() const { return wire::device_count(*exported_); }

nb::tuple Artifact::platforms() const {
  nb::list names;
  for (const auto* name : *exported_->platforms()) names.append(text(*name));
  return nb::tuple(names);
}

}  // namespace jaxexp

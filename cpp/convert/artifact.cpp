// Reading artifacts where they lie.
#include "convert/artifact.h"

#include "convert/decoder.h"
#include "wire/check.h"
#include "wire/generation.h"
#include "wire/verify.h"

namespace jaxexp {
namespace {

/// Below this, letting other threads run costs more than it gives them.
constexpr std::size_t large_buffer = std::size_t{1} << 20;

/// FlatBuffers are read in place, which needs the alignment that they were written with.
std::shared_ptr<const Buffer> aligned(nb::handle owner) {
  auto buffer = std::make_shared<const Buffer>(owner);
  if (reinterpret_cast<std::uintptr_t>(buffer->bytes().data()) % alignof(std::uint32_t) == 0) return buffer;
  return std::make_shared<const Buffer>(nb::bytes(buffer->bytes().data(), buffer->bytes().size()));
}

const schema::Exported& verified(const Buffer& buffer) {
  const auto verify_and_check = [&]() -> const schema::Exported& {
    const schema::Exported& root = wire::verify(buffer.bytes());
    wire::check(root, buffer.bytes().size());
    return root;
  };
  // The owner of a writable buffer could change it in another thread while it is being verified.
  if (buffer.writable() || buffer.bytes().size() < large_buffer) return verify_and_check();
  nb::gil_scoped_release release;
  return verify_and_check();
}

nb::str text(const flatbuffers::String& string) { return nb::str(string.c_str(), string.size()); }

}  // namespace

Artifact::Artifact(nb::handle buffer) : buffer_(aligned(buffer)), order_(0) {
  const schema::Exported& root = verified(*buffer_);
  if (!buffer_->writable()) exported_ = &root;
}

const schema::Exported& Artifact::exported() const {
  if (exported_) return *exported_;
  const schema::Exported* exported = &verified(*buffer_);
  for (std::size_t i = 0; i < order_; ++i) {
    exported = exported->vjp();
    if (!exported) throw wire::Error({nullptr, "vjp"}, "the VJP that was there before", "none");
  }
  return *exported;
}

nb::dict Artifact::decode() const {
  const std::shared_ptr<const JaxRefs> refs = jax_refs();
  std::string path;
  for (std::size_t i = 0; i < order_; ++i) path += i == 0 ? "vjp" : ".vjp";
  return Decoder(*refs, exported(), buffer_->bytes(), path).exported();
}

nb::object Artifact::module() const {
  const auto& module = *exported().mlir_module_serialized();
  return buffer_->part({module.Data(), module.size()});
}

std::optional<Artifact> Artifact::vjp() const {
  const schema::Exported* vjp = exported().vjp();
  if (!vjp) return std::nullopt;
  Artifact artifact(buffer_, order_ + 1);
  if (!buffer_->writable()) artifact.exported_ = vjp;
  return artifact;
}

nb::object Artifact::jax_version() const {
  const auto* version = exported().jax_version();
  return version ? nb::object(text(*version)) : nb::none();
}

std::string_view Artifact::writer() const { return wire::writer(exported()); }

nb::str Artifact::fun_name() const { return text(*exported().function_name()); }

std::uint32_t Artifact::nr_devices() const { return wire::device_count(exported()); }

nb::tuple Artifact::platforms() const {
  nb::list names;
  for (const auto* name : *exported().platforms()) names.append(text(*name));
  return nb::tuple(names);
}

}  // namespace jaxexp

// Reading artifacts where they lie.
#include "convert/artifact.h"

#include "convert/decoder.h"
#include "wire/check.h"
#include "wire/generation.h"
#include "wire/values.h"
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

/// Adds the names of a tree's custom nodes. Trees share subtrees, so each is looked at once.
void add_custom_nodes(const wire::schema::PyTreeDef& node, nb::set& names, wire::FlatMap<bool>& seen) {
  if (!seen.insert(reinterpret_cast<std::uintptr_t>(&node)).second) return;
  if (node.kind() == schema::PyTreeDefKind::custom) names.add(text(*node.custom_name()));
  for (std::uint32_t i = 0; i < wire::Values::length(node.children()); ++i)
    add_custom_nodes(*node.children()->Get(i), names, seen);
}

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

nb::dict Artifact::facts() const {
  const schema::Exported& e = *exported_;
  nb::set dtypes, memory_spaces, custom_nodes;
  bool hlo_alone = false, named = false, listed = true, indexed = false;
  for (const auto& values : {wire::Values::arguments(e), wire::Values::results(e)}) {
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      dtypes.add(static_cast<int>(values.aval(i).dtype()));
      memory_spaces.add(static_cast<int>(values.aval(i).memory_space()));
      hlo_alone = hlo_alone || values.hlo_sharding(i);
      named = named || values.named_sharding(i);
    }
    listed = listed && wire::Values::length(values.avals) == values.size() &&
             wire::Values::length(values.shardings) == values.size();
    indexed = indexed || values.avals_by_index() || values.shardings_by_index();
  }
  wire::FlatMap<bool> seen;
  for (const auto* tree : {e.in_tree(), e.out_tree()}) add_custom_nodes(*tree, custom_nodes, seen);

  nb::dict facts;
  facts["calling_convention_version"] = e.calling_convention_version();
  facts["short_device_count"] = e.nr_devices_short();
  facts["long_device_count"] = e.nr_devices();
  facts["dtypes"] = dtypes;
  facts["memory_spaces"] = memory_spaces;
  facts["custom_nodes"] = custom_nodes;
  facts["hlo_sharding_alone"] = hlo_alone;
  facts["named_shardings"] = named;
  facts["listed"] = listed;
  facts["indexed"] = indexed;
  return facts;
}

}  // namespace jaxexp

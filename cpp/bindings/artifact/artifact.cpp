// Reading artifacts where they lie.
#include "bindings/artifact/artifact.h"

#include "bindings/artifact/library_nodes.h"
#include "bindings/base/objects.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/symbolic.h"

namespace jaxexp::bindings {
namespace {

nb::str text(const flatbuffers::String& string) { return bindings::text(string.string_view()); }

/// Adds the names of a tree's custom nodes: of the class where nobody registered it. Trees share subtrees, so each is
/// looked at once.
void add_custom_nodes(const wire::schema::PyTreeDef& node, LibraryNodes& library_nodes, nb::set& names,
                      wire::FlatMap<bool>& seen) {
  if (!seen.insert(reinterpret_cast<std::uintptr_t>(&node)).second) return;
  if (node.kind() == schema::PyTreeDefKind::custom) {
    const nb::object known = library_nodes[node], name = known.is_none() ? known : nb::object(known[0]);
    names.add(name.is_none() ? text(*node.custom_name()) : name);
  }
  for (std::uint32_t i = 0; i < wire::Values::length(node.children()); ++i)
    add_custom_nodes(*node.children()->Get(i), library_nodes, names, seen);
}

}  // namespace

Artifact::Source::Source(nb::handle owner, nb::handle module_owners, bool in_place)
    : buffer(stable(owner, Buffer::alignment, /*in_parts=*/true, in_place)),
      file(file_of(owner)),
      bytes(buffer->bytes()) {
  std::vector<wire::Opened::Bytes> spans;
  if (module_owners.is_valid())
    for (nb::handle module : module_owners) {
      modules.push_back(stable(module, Buffer::alignment, /*in_parts=*/false, in_place));
      spans.push_back(modules.back()->bytes());
    }
  over(bytes.size(),
       [&] { wire::open_in(file, bytes, !spans.empty(), opened, [&] { opened.emplace(bytes, spans); }); });
}

Artifact::Artifact(std::shared_ptr<const Source> source)
    : source_(std::move(source)), exported_(&source_->opened->root()), order_(0) {}

Artifact::Artifact(nb::handle buffer, nb::handle modules, bool in_place)
    : Artifact(std::make_shared<const Source>(buffer, modules, in_place)) {}

Facts Artifact::decode() const {
  const auto fields = owned<Attributes>(PyDict_New());
  complete(fields);
  return Facts(fields);
}

void Artifact::complete(const Attributes& attributes) const {
  const Decoded& decoded = decode_once();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(decoded.names.ptr()); ++i) {
    PyObject *const name = PyTuple_GET_ITEM(decoded.names.ptr(), i), *const value =
                                                                         PyTuple_GET_ITEM(decoded.values.ptr(), i);
    if (!PyDict_SetDefault(attributes.ptr(), name, value)) throw nb::python_error();
  }
}

const Artifact::Decoded& Artifact::decode_once() const {
  if (!decoded_) decoded_ = std::make_shared<Decoded>();
  Decoded& decoded = *decoded_;
  if (decoded.values.is_valid()) return decoded;
  const std::shared_ptr<const JaxRefs> refs = jax_refs();
  const std::string path = wire::path_in_chain(order_);
  const wire::Trailer* const trailer = source_->opened->trailer() ? &*source_->opened->trailer() : nullptr;
  Decoder decoder(*refs, *exported_, source_->bytes, path, trailer, order_);
  JaxRefs::NamedValues fields = decoder.exported();
  const nb::object names = refs->names_of(fields);
  const nb::object values = new_tuple(fields.size(), [&](std::size_t i) { return std::move(fields[i].second); });
  // Decoding calls Python, so another thread may have been faster. All see what the first one made.
  if (!decoded.values.is_valid()) decoded = {names, values, decoder.said(), decoder.is_shareable()};
  return decoded;
}

void Artifact::prepare(const std::optional<Later>& asked) const {
  if (is_decoded()) return;
  const auto can_wait = [&] {
    if (!source_->buffer->is_constant()) return false;  // a caller keeps it, and may not keep it for ever
    const Later later = asked ? *asked : this->later();
    const std::shared_ptr<const JaxRefs> refs = jax_refs();
    if (!later.may_wait || !refs->tree_state_known || (later.is_symbolic && !Symbolic::of(*refs).is_known()))
      return false;
    if (!decoded_) decoded_ = std::make_shared<Decoded>();
    decoded_->is_shareable = !later.is_symbolic;
    return true;
  };
  if (!can_wait()) decode_once();
}

Later Artifact::later() const {
  const auto& trailer = source_->opened->trailer();
  return bindings::later(*exported_, trailer ? &*trailer : nullptr, source_->bytes.size());
}

std::span<const std::uint8_t> Artifact::module_bytes() const {
  const auto bytes = unchecked_module_bytes();
  const wire::Opened& opened = *source_->opened;
  if (!opened.is_module_checked(order_)) over(bytes.size(), [&] { opened.check_module(*exported_, order_); });
  return bytes;
}

void Artifact::check_module(const wire::Digest& found) const {
  if (source_->opened->trailer()) source_->opened->trailer()->check_module(found, order_);
}

std::span<const std::uint8_t> Artifact::unchecked_module_bytes() const {
  const auto bytes = source_->opened->module(*exported_, order_);
  if (source_->file) fetch(*source_->file, bytes);
  return bytes;
}

std::size_t Artifact::size() const {
  const auto& trailer = source_->opened->trailer();
  return trailer ? trailer->whole_size() : source_->bytes.size();
}

std::optional<Artifact> Artifact::vjp() const {
  const schema::Exported* vjp = exported_->vjp();
  if (!vjp) return std::nullopt;
  return Artifact(source_, *vjp, order_ + 1);
}

std::optional<nb::str> Artifact::jax_version() const {
  const auto* version = exported_->jax_version();
  return version ? std::optional(text(*version)) : std::nullopt;
}

std::optional<std::pair<nb::str, std::size_t>> Artifact::origin() const {
  if (order_ == 0) return std::nullopt;
  return std::pair(text(*source_->opened->root().function_name()), order_);
}

nb::typed<nb::tuple, nb::str, nb::ellipsis> Artifact::platforms() const {
  const auto& names = *exported_->platforms();
  return new_tuple(names.size(), [&](std::size_t i) { return text(*names[static_cast<std::uint32_t>(i)]); });
}

std::pair<std::uint32_t, std::uint32_t> Artifact::counts() const {
  return {wire::Values::arguments(*exported_).size(), wire::Values::results(*exported_).size()};
}

bool Artifact::runs_anywhere() const {
  const auto* checks = exported_->disabled_checks();
  for (std::uint32_t i = 0; i < wire::Values::length(checks); ++i)
    if (checks->Get(i)->kind() == schema::DisabledSafetyCheckKind::platform) return true;
  return false;
}

std::pair<std::uintptr_t, std::size_t> Artifact::module_place() const {
  const auto bytes = source_->opened->module(*exported_, order_);
  return {reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()};
}

Facts Artifact::facts(const nb::object& library_node) const {
  const schema::Exported& e = *exported_;
  nb::set dtypes = new_set(), custom_nodes = new_set();
  bool hlo_alone = false, named = false, listed = true, indexed = false;
  for (const auto& values : {wire::Values::arguments(e), wire::Values::results(e)}) {
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      dtypes.add(static_cast<int>(values.aval(i).dtype()));
      hlo_alone = hlo_alone || values.hlo_sharding(i);
      named = named || values.named_sharding(i);
    }
    listed = listed && wire::Values::length(values.avals) == values.size() &&
             wire::Values::length(values.shardings) == values.size();
    indexed = indexed || values.avals_by_index() || values.shardings_by_index();
  }
  wire::FlatMap<bool> seen;
  LibraryNodes library_nodes(library_node);
  for (const auto* tree : {e.in_tree(), e.out_tree()}) add_custom_nodes(*tree, library_nodes, custom_nodes, seen);

  nb::dict facts = new_dict();
  facts["calling_convention_version"] = e.calling_convention_version();
  facts["short_device_count"] = e.nr_devices_short();
  facts["long_device_count"] = e.nr_devices();
  facts["dtypes"] = dtypes;
  facts["custom_nodes"] = custom_nodes;
  facts["hlo_sharding_alone"] = hlo_alone;
  facts["named_shardings"] = named;
  facts["listed"] = listed;
  facts["indexed"] = indexed;
  return facts;
}

wire::Digest Artifact::digest() const {
  const auto bytes = source_->bytes;
  return over(bytes.size(), [&] { return wire::digest(bytes); });
}

std::vector<std::tuple<std::ptrdiff_t, std::size_t, wire::Digest>> Artifact::modules() const {
  std::vector<std::tuple<std::ptrdiff_t, std::size_t, wire::Digest>> modules;
  const std::uint8_t* const start = source_->bytes.data();
  for (std::optional<Artifact> link = *this; link; link = link->vjp()) {
    const auto bytes = link->unchecked_module_bytes();
    const wire::Digest digest = over(bytes.size(), [&] { return wire::digest(bytes); });
    link->check_module(digest);
    modules.emplace_back(bytes.data() - start, bytes.size(), digest);
  }
  return modules;
}

std::optional<nb::typed<nb::dict, nb::str, nb::str>> Artifact::metadata() const {
  if (order_ != 0 || !source_->opened->trailer() || !source_->opened->trailer()->content().metadata())
    return std::nullopt;
  nb::dict texts = new_dict();
  for (const schema::Entry* entry : *source_->opened->trailer()->content().metadata())
    texts[text(*entry->key())] = text(*entry->value());
  return texts;
}

bool Artifact::has_cases_or_sizes() const {
  const auto& trailer = source_->opened->trailer();
  if (!trailer || order_ != 0) return false;
  const schema::Trailer& content = trailer->content();
  return content.cases() || content.sizes() || content.padded();
}

nb::tuple Artifact::sizes() const {
  const auto& trailer = source_->opened->trailer();
  const std::vector<wire::Sizes> found = trailer && order_ == 0 ? trailer->sizes() : std::vector<wire::Sizes>();
  return new_tuple(found.size(), [&](std::size_t i) {
    nb::dict sizes = new_dict();
    for (const auto& [name, size] : found[i]) sizes[text(name)] = size;
    return sizes;
  });
}

nb::tuple Artifact::padded() const {
  const auto& trailer = source_->opened->trailer();
  const auto found = trailer && order_ == 0 ? trailer->padded() : std::vector<std::string_view>();
  return new_tuple(found.size(), [&](std::size_t i) { return text(found[i]); });
}

std::optional<wire::Weights> Artifact::weights() const {
  const auto& trailer = source_->opened->trailer();
  if (!trailer || !trailer->content().weights()) return std::nullopt;
  return wire::read_weights(*trailer->content().weights());
}

std::optional<wire::Cases> Artifact::cases() const {
  const auto& trailer = source_->opened->trailer();
  if (!trailer || !trailer->content().cases()) return std::nullopt;
  return wire::read_cases(*trailer->content().cases());
}

std::optional<Facts> Artifact::trailer() const {
  if (!source_->opened->trailer()) return std::nullopt;
  const schema::Trailer& content = source_->opened->trailer()->content();
  const auto indices = [](const flatbuffers::Vector<std::uint32_t>* indices) {
    const std::size_t size = wire::Values::length(indices);
    return new_tuple(size, [&](std::size_t i) { return nb::int_(indices->Get(static_cast<std::uint32_t>(i))); });
  };
  nb::list constraints = new_list(), functions = new_list();
  for (std::uint32_t i = 0; i < wire::Values::length(content.constraints()); ++i)
    constraints.append(text(*content.constraints()->Get(i)));
  for (std::size_t order = 0; order < content.functions()->size(); ++order) {
    const schema::FunctionNotes& notes = source_->opened->trailer()->notes(order);
    nb::dict function = new_dict();
    function["module_size"] = notes.module_size();
    function["module_digest"] = source_->opened->trailer()->module_digest(order);
    function["weak_arguments"] = indices(notes.weak_arguments());
    function["weak_results"] = indices(notes.weak_results());
    functions.append(function);
  }
  nb::dict facts = new_dict();
  facts["writer"] = text(*content.writer());
  facts["constraints"] = nb::tuple(constraints);
  facts["functions"] = nb::tuple(functions);
  return facts;
}

}  // namespace jaxexp::bindings

// The public view of artifacts: what the Python package decodes to objects of JAX, as text.
#include "jaxexp/artifact.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "wire/api/beside_weights.h"
#include "wire/api/translating.h"
#include "wire/artifact/layout.h"
#include "wire/artifact/opened.h"
#include "wire/artifact/trailer.h"
#include "wire/base/dtype.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/generation.h"
#include "wire/exported/leaf_paths.h"
#include "wire/exported/values.h"
#include "wire/tensors/json.h"

namespace jaxexp::wire {
namespace {

// The names of the children of custom nodes, from what their auxiliary data says.

/// The step to the value of a key, which is quoted as Python does, but for the choice of characters that are shown as
/// they are.
std::string key_step(std::string_view key);

using Kind = JsonValue::Kind;

std::string attribute(std::string_view name) { return '.' + shortened(name, longest_path); }

/// The steps to the children of a node that auxiliary data describes.
class Described {
 public:
  explicit Described(std::string_view data) {
    read_json_object(data, "a description", "names", /*takes_all_numbers=*/true,
                     [&](const JsonPath& path, const JsonValue& value) { take(path, value); });
  }

  std::vector<std::string> steps;

 private:
  void take(const JsonPath& path, const JsonValue& value) {
    if (path.empty() || path[0] != "keys" || path.size() < 2) return;
    if (path.size() == 3) {  // inside of ["item", key]
      if (value.kind == Kind::text && ++parts_ == 2) steps.push_back(key_step(value.text));
      if ((value.kind == Kind::natural || value.kind == Kind::other) && ++parts_ == 2)
        steps.push_back('[' + value.text + ']');
    } else if (value.kind == Kind::text) {
      steps.push_back(attribute(value.text));
    } else if (value.kind == Kind::array) {
      parts_ = 0;
    } else if (value.kind == Kind::other) {  // null
      steps.push_back(child_step(static_cast<std::uint32_t>(steps.size())));
    }
  }

  int parts_ = 0;
};

/// The texts of a JSON list of texts; none where the data is something else.
std::vector<std::string> listed(std::string_view data) {
  std::vector<std::string> texts;
  bool all_texts = true;
  read_json_object("{\"\":" + std::string(data) + '}', "a list", "names", /*takes_all_numbers=*/true,
                   [&](const JsonPath& path, const JsonValue& value) {
                     if (path.size() == 2 && value.kind == Kind::text)
                       texts.push_back(value.text);
                     else if (path.size() >= 2 && value.kind != Kind::end)
                       all_texts = false;
                   });
  if (!all_texts) texts.clear();
  return texts;
}

std::vector<std::string> read(const schema::PyTreeDef& node, std::string_view data) {
  if (is_library_node(node)) return Described(data).steps;
  // What `register_namedtuple_serialization` stores, and JAX for an OrderedDict.
  std::vector<std::string> steps = listed(data);
  const bool is_dict = node.custom_name()->string_view() == std::string_view("collections.OrderedDict");
  for (std::string& step : steps) step = is_dict ? key_step(step) : attribute(step);
  return steps;
}

/// Reads auxiliary data once, however many nodes share it. `jaxexp/_kernel/artifact/node.py` does the same.
class ChildSteps {
 public:
  /// The step to a child of a custom node: ".weight", "['a']", or "<0>" where the data does not name the children.
  std::string step(const schema::PyTreeDef& node, std::uint32_t i) {
    const auto* data = node.custom_auxdata();
    if (!data) return child_step(i);
    // Nodes of several kinds may share data, and have other names for it; data lies at multiples of 4.
    const std::string_view name = node.custom_name()->string_view();
    const std::uint64_t kind = is_library_node(node) ? 1 : name == std::string_view("collections.OrderedDict") ? 2 : 0;
    auto [steps, is_new] = known_.insert(reinterpret_cast<std::uintptr_t>(data) + kind);
    if (is_new) {
      try {
        steps = read(node, {reinterpret_cast<const char*>(data->data()), data->size()});
      } catch (const TensorsError&) {  // data of another kind, which has no names
      }
    }
    return steps.size() == Values::length(node.children()) ? steps[i] : child_step(i);
  }

 private:
  FlatMap<std::vector<std::string>> known_;
};

std::string key_step(std::string_view whole) {
  const std::string key = shortened(whole, longest_path);
  const char quote = key.find('\'') != key.npos && key.find('"') == key.npos ? '"' : '\'';
  std::string text{'[', quote};
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\')
      (text += '\\') += c;
    else if (c == '\n' || c == '\r' || c == '\t')
      (text += '\\') += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    else if (byte < ' ' || byte == 0x7F)
      text += escaped({&c, 1});
    else
      text += c;
  }
  return (text += quote) += ']';
}

// Views of what a trailer says of tensors and cases, which was checked when the artifact was opened. Texts and arrays
// stay where they are, in the artifact.

using CaseValues = flatbuffers::Vector<flatbuffers::Offset<schema::CaseValue>>;

Case::Value value_in(const schema::CaseValue& value) {
  const auto shape = shape_of(value);
  Case::Value read{dtype_name(value.dtype()), {shape.begin(), shape.end()}, {}, {}, {}, {}};
  if (const auto* data = value.data()) read.data = {data->data(), data->size()};
  if (value.tensor() > 0) read.tensor = value.tensor() - 1;
  if (const auto* drawn = value.drawn())
    read.drawn = {static_cast<Case::Drawn::Distribution>(drawn->distribution()), drawn->seed(), drawn->first(),
                  drawn->second()};
  if (const auto* tolerance = value.tolerance()) read.tolerance = {tolerance->relative(), tolerance->absolute()};
  return read;
}

std::vector<Case::Value> values_in(const CaseValues& values) {
  std::vector<Case::Value> read;
  for (const schema::CaseValue* value : values) read.push_back(value_in(*value));
  return read;
}

std::vector<jaxexp::Weights::File> files_in(const Vectors::FilesRead& files) {
  std::vector<jaxexp::Weights::File> read;
  for (const schema::TensorFile* file : files)
    read.push_back({file->name()->string_view(), file->size(), stored(*file->content())});
  return read;
}

/// `in_archive` has the bytes of each tensor; it is empty where they are in no archive.
std::vector<jaxexp::Weights::Tensor> tensors_in(const Vectors::TensorsRead& tensors,
                                                std::span<const std::span<const std::uint8_t>> in_archive) {
  std::vector<jaxexp::Weights::Tensor> read;
  for (const schema::Tensor* tensor : tensors)
    read.push_back({tensor->name()->string_view(), tensor->file(), tensor->size(), stored(*tensor->digest()),
                    in_archive.empty() ? std::span<const std::uint8_t>() : in_archive[read.size()]});
  return read;
}

/// Of a trailer that has cases.
jaxexp::Cases cases_in(const Trailer& trailer, std::span<const std::span<const std::uint8_t>> in_archive) {
  const schema::Cases& cases = *trailer.content().cases();
  jaxexp::Cases read{
      {}, {}, files_in(*cases.files()), tensors_in(*cases.tensors(), in_archive), trailer.artifact_digest()};
  for (const schema::Case* one : *cases.cases())
    read.all.push_back({one->name()->string_view(), one->order(), values_in(*one->arguments()),
                        values_in(*one->results()), one->recording(), one->trace() != nullptr});
  for (const schema::Recording* recording : *cases.recordings()) {
    auto& facts = read.recordings.emplace_back();
    for (const schema::Entry* fact : *recording->facts())
      facts.emplace_back(fact->key()->string_view(), fact->value()->string_view());
  }
  return read;
}

}  // namespace
}  // namespace jaxexp::wire

namespace jaxexp {
namespace {

using wire::Values;

template <class Vector, class Read>
auto each(const Vector* vector, const Read& read) {
  std::vector<decltype(read(vector->Get(0)))> values;
  for (std::uint32_t i = 0; i < Values::length(vector); ++i) values.push_back(read(vector->Get(i)));
  return values;
}

std::vector<std::string_view> strings(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* texts) {
  return each(texts, [](const flatbuffers::String* text) { return text->string_view(); });
}

/// Bytes of what is shown of a value or a sharding: thousands of them may share texts of any length.
constexpr std::size_t longest_text = 1000;

/// At least as much of the parts as is shown.
std::string joined(const auto& parts, std::string_view separator = ", ") {
  std::string text;
  for (std::string_view part : parts) {
    if (text.size() > longest_text) break;
    (text += text.empty() ? std::string_view() : separator) += part.substr(0, longest_text + 1);
  }
  return text;
}

Sharding sharding(const wire::schema::Exported& e, const wire::schema::NamedSharding& named) {
  const auto& mesh = wire::mesh_of(named, e);
  Sharding result;
  for (std::uint32_t i = 0; i < Values::length(mesh.axis_names()); ++i)
    result.mesh.push_back({mesh.axis_names()->Get(i)->string_view(), mesh.axis_sizes()->Get(i)});
  result.partitions = each(named.spec()->partitions(), [](const auto* one) { return strings(one->axes()); });
  result.unreduced = strings(named.spec()->unreduced());
  if (named.memory_kind()) result.memory_kind = named.memory_kind()->string_view();
  return result;
}

/// The paths of the leaves of an `in_tree`, which is the pair (args, kwargs), or of an `out_tree`.
std::vector<std::string> paths(const wire::schema::PyTreeDef& tree, bool is_in_tree) {
  std::vector<std::string> found;
  wire::ChildSteps custom;
  const auto step = [&](const wire::schema::PyTreeDef& node, std::uint32_t i) {
    using Kind = wire::schema::PyTreeDefKind;
    if (node.kind() == Kind::dict) return wire::key_step(node.children_names()->Get(i)->string_view());
    return node.kind() == Kind::custom ? custom.step(node, i) : wire::index_step(i);
  };
  wire::for_each_leaf(tree, step, [&](std::string inside) {
    if (!is_in_tree)
      inside.insert(0, "result");
    else if (inside.starts_with("[0]"))
      inside.replace(0, 3, "args");
    else if (inside.starts_with("[1]"))
      inside.replace(0, 3, "kwargs");
    found.push_back(std::move(inside));
  });
  return found;
}

/// Adds a node, and what is below it. How many there are, and how deep, was checked when the artifact was opened.
void add_nodes(const wire::schema::PyTreeDef& tree, std::vector<Node>& nodes) {
  using Kind = wire::schema::PyTreeDefKind;
  Node node{static_cast<Node::Kind>(tree.kind()), Values::length(tree.children()), {}};
  if (tree.kind() == Kind::dict) node.keys = strings(tree.children_names());
  if (tree.kind() == Kind::custom) {
    node.name = tree.custom_name()->string_view();
    if (const auto* data = tree.custom_auxdata())
      node.data = {reinterpret_cast<const std::uint8_t*>(data->data()), data->size()};
  }
  nodes.push_back(std::move(node));
  for (std::uint32_t i = 0; i < Values::length(tree.children()); ++i) add_nodes(*tree.children()->Get(i), nodes);
}

std::vector<Node> nodes_of(const wire::schema::PyTreeDef& tree) {
  std::vector<Node> nodes;
  add_nodes(tree, nodes);
  return nodes;
}

std::vector<Value> values(const wire::schema::Exported& e, const Values& v, bool are_arguments) {
  std::vector<std::string> path = paths(are_arguments ? *e.in_tree() : *e.out_tree(), are_arguments);
  std::vector<Value> result(v.size());
  wire::FlatMap<Dimensions> shapes;
  wire::FlatMap<std::shared_ptr<const Sharding>> shardings;
  for (std::uint32_t i = 0; i < v.size(); ++i) {
    result[i].dtype = wire::dtype_name(static_cast<int>(v.aval(i).dtype()));
    if (const auto* dimensions = v.aval(i).shape()) {
      auto [shape, is_new] = shapes.insert(reinterpret_cast<std::uintptr_t>(dimensions));
      if (is_new) shape = Dimensions(strings(dimensions));
      result[i].shape = shape;
    }
    if (const auto* named = v.named_sharding(i)) {
      auto [made, is_new] = shardings.insert(reinterpret_cast<std::uintptr_t>(named));
      if (is_new) made = std::make_shared<const Sharding>(sharding(e, *named));
      result[i].sharding = made;
    }
    if (const auto* proto = v.hlo_sharding(i))
      result[i].op_sharding = {reinterpret_cast<const std::uint8_t*>(proto->data()), proto->size()};
    result[i].path = std::move(path[i]);
  }
  return result;
}

}  // namespace

std::string escaped(std::string_view text) { return wire::escaped(text); }

std::string Sharding::str() const {
  std::string text;
  for (const MeshAxis& axis : mesh) {
    if (text.size() > longest_text) break;
    (text += text.empty() ? "{" : ", ") += axis.name.substr(0, longest_text + 1);
    text += ": " + std::to_string(axis.size);
  }
  text += text.empty() ? "{} (" : "} (";
  for (std::size_t i = 0; i < partitions.size() && text.size() <= longest_text; ++i) {
    if (i > 0) text += ", ";
    const auto& axes = partitions[i];
    text += axes.empty() ? "None" : axes.size() == 1 ? joined(axes) : '(' + joined(axes) + ')';
  }
  text += ')';
  if (memory_kind) (text += " in ") += memory_kind->substr(0, longest_text + 1);
  return escaped(wire::shortened(text, longest_text));
}

std::string Value::str() const {
  return escaped(wire::shortened(dtype + '[' + joined(shape, ",") + ']', longest_text));
}

struct Artifact::State {
  State(std::span<const std::uint8_t> buffer, std::span<const std::span<const std::uint8_t>> modules,
        const FindTensor& find_tensor, bool is_copied) {
    // Tables are read where they lie, and were written for multiples of four.
    if (is_copied || reinterpret_cast<std::uintptr_t>(buffer.data()) % alignof(std::uint32_t) != 0)
      buffer = copied(buffer);
    std::vector<std::span<const std::uint8_t>> own(modules.begin(), modules.end());
    if (is_copied) std::ranges::transform(own, own.begin(), [&](auto module) { return copied(module); });
    opened.emplace(buffer, own);
    for (const auto& [order, function] : wire::Chain(opened->root())) functions.push_back(&function);
    if (!find_tensor) return;
    const auto found = [&](const wire::schema::Tensor* one) { return find_tensor(wire::stored(*one->digest())); };
    if (const auto* stored = stored_weights()) weights_in_archive = each(stored->tensors(), found);
    if (const auto* stored = stored_cases()) cases_in_archive = each(stored->tensors(), found);
  }

  const wire::schema::Weights* stored_weights() const {
    return opened->trailer() ? opened->trailer()->content().weights() : nullptr;
  }
  const wire::schema::Cases* stored_cases() const {
    return opened->trailer() ? opened->trailer()->content().cases() : nullptr;
  }

  const wire::schema::Exported& function(std::size_t order) const { return *functions[order]; }

  std::span<const std::uint8_t> copied(std::span<const std::uint8_t> bytes) {
    auto& copy = copies[{bytes.data(), bytes.size()}];
    if (!copy) {
      copy = std::make_unique_for_overwrite<std::uint32_t[]>(bytes.size() / 4 + 1);
      std::ranges::copy(bytes, reinterpret_cast<std::uint8_t*>(copy.get()));
    }
    return {reinterpret_cast<const std::uint8_t*>(copy.get()), bytes.size()};
  }

  /// Of the caller's bytes, by place and size: functions may share a module.
  std::map<std::pair<const std::uint8_t*, std::size_t>, std::unique_ptr<std::uint32_t[]>> copies;
  std::optional<wire::Opened> opened;
  std::vector<const wire::schema::Exported*> functions;  // the primal, its VJP, the VJP's VJP, ...
  /// Each tensor of the weights, and of the cases; none where they are in no archive.
  std::vector<std::span<const std::uint8_t>> weights_in_archive, cases_in_archive;
};

Artifact::Artifact(std::span<const std::uint8_t> buffer) : Artifact(buffer, {}, nullptr, false) {}

Artifact::Artifact(std::span<const std::uint8_t> buffer, std::span<const std::span<const std::uint8_t>> modules,
                   const FindTensor& find_tensor, bool is_copied)
    : state_(translating([&] { return std::make_shared<const State>(buffer, modules, find_tensor, is_copied); })) {}

Artifact::Artifact(std::shared_ptr<const State> state, std::size_t order) : state_(std::move(state)), order_(order) {}

std::string_view Artifact::function_name() const { return state_->function(order_).function_name()->string_view(); }

std::vector<std::string_view> Artifact::platforms() const { return strings(state_->function(order_).platforms()); }

std::uint32_t Artifact::nr_devices() const { return wire::device_count(state_->function(order_)); }

std::vector<Value> Artifact::arguments() const {
  const auto& e = state_->function(order_);
  auto arguments = values(e, Values::arguments(e), true);
  const auto* const weights = order_ == 0 ? state_->stored_weights() : nullptr;
  if (weights && weights->tensors()->size() > 0)
    for (Value& argument : arguments) argument.path = wire::beside_weights(argument.path);
  return arguments;
}

std::vector<Value> Artifact::results() const {
  const auto& e = state_->function(order_);
  return values(e, Values::results(e), false);
}

std::vector<Node> Artifact::argument_tree() const { return nodes_of(*state_->function(order_).in_tree()); }

std::vector<Node> Artifact::result_tree() const { return nodes_of(*state_->function(order_).out_tree()); }

std::optional<Weights> Artifact::weights() const {
  const auto* const stored = state_->stored_weights();
  if (!stored) return std::nullopt;
  Weights weights{
      wire::files_in(*stored->files()), wire::tensors_in(*stored->tensors(), state_->weights_in_archive), {}};
  if (wire::count_of_other_names(*stored) > 0)
    for (const auto* other : *stored->other_names())
      weights.other_names.push_back({other->name()->string_view(), other->tensor()});
  if (!std::ranges::equal(weights.tensors, names_of_first_argument(), {}, &Weights::Tensor::name))
    throw DeserializationError("trailer.weights.tensors", "the names in the dict that is the first argument",
                               "different names");
  return weights;
}

Cases Artifact::cases() const {
  return state_->stored_cases() ? wire::cases_in(*state_->opened->trailer(), state_->cases_in_archive) : Cases();
}

std::vector<std::map<std::string, std::int64_t>> Artifact::sizes() const {
  std::vector<std::map<std::string, std::int64_t>> found;
  if (const auto& trailer = state_->opened->trailer())
    for (const wire::Sizes& sizes : trailer->sizes()) found.emplace_back(sizes.begin(), sizes.end());
  return found;
}

std::vector<std::string_view> Artifact::padded() const {
  const auto& trailer = state_->opened->trailer();
  return trailer ? trailer->padded() : std::vector<std::string_view>();
}

std::vector<std::string_view> Artifact::names_of_first_argument() const {
  using Kind = wire::schema::PyTreeDefKind;
  const auto& args = *state_->function(0).in_tree()->children()->Get(0);  // of which VJPs have the leaves only
  if (Values::length(args.children()) == 0) return {};
  const auto& first = *args.children()->Get(0);
  const auto is_leaf = [](const wire::schema::PyTreeDef* child) { return child->kind() == Kind::leaf; };
  if (first.kind() != Kind::dict || Values::length(first.children()) == 0 ||
      !std::all_of(first.children()->begin(), first.children()->end(), is_leaf))
    return {};
  return strings(first.children_names());
}

std::vector<std::uint32_t> Artifact::kept_arguments() const {
  return each(state_->function(order_).module_kept_var_idx(), [](std::uint32_t index) { return index; });
}

std::vector<std::string_view> Artifact::ordered_effects() const {
  return each(state_->function(order_).ordered_effects(), [](const auto* e) { return e->type_name()->string_view(); });
}

std::vector<std::string_view> Artifact::unordered_effects() const {
  return each(state_->function(order_).unordered_effects(),
              [](const auto* e) { return e->type_name()->string_view(); });
}

std::vector<std::string> Artifact::disabled_checks() const {
  return each(state_->function(order_).disabled_checks(), [](const auto* check) {
    using Kind = wire::schema::DisabledSafetyCheckKind;
    if (check->kind() == Kind::custom_call) return "custom_call " + check->custom_call_target()->str();
    return std::string(check->kind() == Kind::platform ? "platform" : "shape_assertions");
  });
}

bool Artifact::has_dynamic_shapes() const { return state_->function(order_).uses_global_constants(); }

unsigned Artifact::calling_convention_version() const { return state_->function(order_).calling_convention_version(); }

std::string_view Artifact::writer() const { return wire::writer(state_->function(order_)); }

std::optional<std::string_view> Artifact::jax_version() const {
  const auto* version = state_->function(order_).jax_version();
  return version ? std::optional(version->string_view()) : std::nullopt;
}

bool Artifact::has_trailer() const { return state_->opened->trailer().has_value(); }

std::span<const std::uint8_t> Artifact::module() const {
  const auto& e = state_->function(order_);
  translating([&] { state_->opened->check_module(e, order_); });
  return state_->opened->module(e, order_);
}

std::optional<Artifact> Artifact::vjp() const {
  if (order_ + 1 == state_->functions.size()) return std::nullopt;
  return Artifact(state_, order_ + 1);
}

}  // namespace jaxexp

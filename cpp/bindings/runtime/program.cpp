// Artifacts that are verified and not yet on a plugin, so that they can be judged before.
#include <nanobind/stl/filesystem.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "bindings/base/file.h"
#include "bindings/base/objects.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"
#include "jaxexp/archive.h"
#include "wire/api/translating.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/base/memory.h"
#include "wire/bytecode/bytecode.h"
#include "wire/tensors/mapped_file.h"

namespace jaxexp::bindings {
namespace {

/// Copies the bytes, unless something else keeps them as they are. `file` is where they are from if their weights are
/// beside it; `member` is not empty if they are an archive.
Program of_bytes(nb::handle bytes, nb::handle memory, const std::filesystem::path& file, const std::string& member) {
  const View view(bytes, PyBUF_SIMPLE);
  std::span all(static_cast<const std::uint8_t*>(view.data()), view.size_bytes());
  Memory owner = memory.is_none() ? nullptr : memory_of(memory);
  const Unlocked unlocked;
  if (!owner) {
    const auto copy = wire::aligned_memory(all.size());
    std::ranges::copy(all, copy.get());
    all = {copy.get(), all.size()};
    owner = copy;
  }
  return {member.empty() ? Artifact(all) : Archive(all).artifact(member), owner, file};
}

Program of_file(const std::filesystem::path& file) {
  const Unlocked unlocked;
  const auto read = translating([&] {
    return std::make_shared<const wire::FileBytes>(
        wire::FileBytes::of_artifact(file, wire::FileBytes::Reading::at_once));
  });
  return {Artifact(read->bytes()), read, file};
}

Program of_archive(const std::filesystem::path& file, const std::string& member, bool stable) {
  using wire::MappedFile;
  const Unlocked unlocked;
  const auto how = stable ? MappedFile::How::read : MappedFile::How::mapped;
  const auto file_bytes = translating([&] { return MappedFile::named(file, how); });
  const Archive archive(file_bytes.bytes());
  return {stable ? archive.artifact(member) : archive.copied_artifact(member), file_bytes.owner(), {}};
}

std::vector<Artifact> chain(const Artifact& artifact) {
  std::vector<Artifact> all;
  for (auto next = std::optional(artifact); next; next = next->vjp()) all.push_back(*next);
  return all;
}

/// The names of the files in which its weights are, if they are not in its archive.
std::vector<std::string_view> weights_files(const Program& program) {
  std::vector<std::string_view> names;
  const auto weights = program.artifact.weights();
  if (weights && !weights->is_in_archive())
    for (const Weights::File& file : weights->files) names.push_back(file.name);
  return names;
}

nb::tuple texts(const auto& all) {
  return new_tuple(all.size(), [&](std::size_t i) { return text(all[i]); });
}

bool calls_lapack(const Program& program) {
  const wire::Path where{nullptr, "mlir_module_serialized"};
  std::set<const std::uint8_t*> read;  // functions of a hostile artifact may share a module
  for (const Artifact& artifact : chain(program.artifact)) {
    const auto module = artifact.module();
    if (!read.insert(module.data()).second) continue;
    const auto contents = translating([&] { return wire::read_contents(module, where); });
    if (!contents || !contents->custom_calls) continue;
    for (const auto& [target, count] : *contents->custom_calls)
      if (target.starts_with("lapack_") || target.starts_with("blas_")) return true;
  }
  return false;
}

Artifact artifact_of(const Program& program, std::size_t order) {
  const auto all = chain(program.artifact);
  return all.at(order);
}

/// What a policy compares, beside what is in the module.
nb::dict facts(const Program& program, std::size_t order) {
  const Artifact artifact = artifact_of(program, order);
  const auto checks = artifact.disabled_checks();
  std::vector<std::string_view> effects = artifact.ordered_effects();
  for (const std::string_view effect : artifact.unordered_effects()) effects.push_back(effect);
  nb::dict found = new_dict();
  found["nr_devices"] = artifact.nr_devices();
  found["platforms"] = texts(artifact.platforms());
  found["runs_anywhere"] = std::ranges::find(checks, "platform") != checks.end();
  found["effects"] = texts(effects);
  found["has_open_sizes"] = artifact.has_dynamic_shapes();
  found["arguments"] = unlocked([&] { return artifact.arguments().size(); });
  found["results"] = unlocked([&] { return artifact.results().size(); });
  found["module_bytes"] = unlocked([&] { return artifact.module().size(); });
  return found;
}

nb::object inventory(const Program& program, std::size_t order) {
  const Artifact artifact = artifact_of(program, order);
  const wire::Path where{nullptr, "mlir_module_serialized"};
  const auto read =
      unlocked([&] { return translating([&] { return wire::read_inventory(artifact.module(), where); }); });
  if (!read) return nb::none();
  const auto listed = [](const auto& names) {
    nb::list list = new_list();
    for (const auto& name : names) list.append(text(name));
    return list;
  };
  nb::dict found = new_dict(), operations = new_dict(), in_bodies = new_dict(), counts = new_dict();
  for (const auto& [name, count] : read->operations) operations[text(name)] = count;
  for (const auto& [name, has_arrays] : read->in_bodies) in_bodies[text(name)] = has_arrays;
  for (const auto& [name, count] : read->device_counts) counts[text(name)] = count;
  nb::object calls = nb::none();
  if (read->custom_calls) {
    nb::dict targets = new_dict();
    for (const auto& [target, has_side_effect] : *read->custom_calls) targets[text(target)] = has_side_effect;
    calls = targets;
  }
  found["operations"] = operations;
  found["in_bodies"] = in_bodies;
  found["unchecked"] = listed(read->unchecked);
  found["unreadable"] = listed(read->unreadable);
  found["attributes"] = listed(read->attributes);
  found["call_attributes"] = listed(read->call_attributes);
  found["custom_calls"] = calls;
  found["unknown_types"] = listed(read->unknown_types);
  found["largest_array"] = nb::cast(read->largest_array);
  found["has_open_sizes"] = read->has_open_sizes;
  found["device_counts"] = counts;
  return found;
}

/// How many weights it has outside of its modules, and how many bytes.
nb::tuple weights(const Program& program) {
  const auto found = program.artifact.weights();
  if (!found) return nb::make_tuple(0, 0);
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t bytes = 0;
  for (const Weights::Tensor& tensor : found->tensors) bytes += std::min(tensor.size, most - bytes);
  return nb::make_tuple(found->tensors.size(), bytes);
}

}  // namespace

nb::tuple described(const std::vector<Value>& values) {
  return new_tuple(values.size(), [&](std::size_t i) {
    const Value& value = values[i];
    return nb::make_tuple(text(value.path), text(value.dtype), texts(value.shape), text(value.str()));
  });
}

nb::tuple described(const std::vector<Node>& nodes) {
  return new_tuple(nodes.size(), [&](std::size_t i) -> nb::object {
    const Node& node = nodes[i];
    const int kind = static_cast<int>(node.kind);
    if (node.kind == Node::Kind::dict) return nb::make_tuple(kind, node.nr_children, texts(node.keys));
    if (node.kind != Node::Kind::custom) return nb::make_tuple(kind, node.nr_children);
    const auto* const data = reinterpret_cast<const char*>(node.data.data());
    return nb::make_tuple(kind, node.nr_children, text(node.name), to_bytes({data, node.data.size()}));
  });
}

void define_program(nb::module_& m) {
  nb::class_<Program>(m, "Program", "An artifact that was verified.")
      .def_static("of_bytes", &of_bytes, "buffer"_a, "memory"_a = nb::none(), "file"_a = "", "member"_a = "",
                  nb::keep_alive<0, 1>(),
                  nb::sig("def of_bytes(buffer: typing_extensions.Buffer, memory: object | None = None, "
                          "file: str | os.PathLike[str] = '', member: str = '') -> Program"),
                  "An artifact, or an archive with this member. The bytes are copied, unless `memory` is that of the "
                  "`FileBytes` that they are. `file` is where they are from if weights are beside it.")
      .def_static("of_file", &of_file, "file"_a, nb::sig("def of_file(file: str | os.PathLike[str]) -> Program"))
      .def_static("of_archive", &of_archive, "file"_a, "member"_a, "stable"_a,
                  nb::sig("def of_archive(file: str | os.PathLike[str], member: str, stable: bool) -> Program"),
                  "A member of an archive, which is mapped, or read if it has to be stable.")
      .def_prop_ro("name", [](const Program& p) { return text(p.artifact.function_name()); })
      .def_prop_ro(
          "platforms", [](const Program& p) { return texts(p.artifact.platforms()); },
          nb::sig("def platforms(self) -> tuple[str, ...]"))
      .def_prop_ro(
          "weights_files", [](const Program& p) { return texts(weights_files(p)); },
          nb::sig("def weights_files(self) -> tuple[str, ...]"),
          "The names of the files of its weights, which are beside it.")
      .def_prop_ro(
          "order", [](const Program& p) { return chain(p.artifact).size() - 1; }, "How many VJPs it has.")
      .def_prop_ro("weights", &weights, nb::sig("def weights(self) -> tuple[int, int]"),
                   "How many weights it has outside of its modules, and how many bytes they have.")
      .def("facts", &facts, "order"_a, nb::sig("def facts(self, order: int) -> dict[str, typing.Any]"),
           "What its VJP of an order says of itself.")
      .def("inventory", &inventory, "order"_a,
           nb::sig("def inventory(self, order: int) -> dict[str, typing.Any] | None"),
           "What is in the module of its VJP of an order; None for bytecode of a version that is not known here.")
      .def("calls_lapack", &calls_lapack, nb::call_guard<Unlocked>(),
           "Whether it, or one of its VJPs, has custom calls of LAPACK.")
      .def(
          "trees",
          [](const Program& p, std::size_t order) {
            const auto all = chain(p.artifact);
            const Artifact& artifact = all.at(order);
            return nb::make_tuple(described(unlocked([&] { return artifact.argument_tree(); })),
                                  described(unlocked([&] { return artifact.result_tree(); })));
          },
          "order"_a,
          nb::sig("def trees(self, order: int) -> "
                  "tuple[tuple[tuple[typing.Any, ...], ...], tuple[tuple[typing.Any, ...], ...]]"),
          "The trees of arguments and results of its VJP of an order.");
}

}  // namespace jaxexp::bindings

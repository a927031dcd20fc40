// Artifacts that are verified and not yet on a plugin, so that they can be judged before.
#include <nanobind/stl/filesystem.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bindings/base/owned.h"
#include "bindings/base/text.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"
#include "jaxexp/archive.h"
#include "wire/api/translating.h"
#include "wire/base/file_bytes.h"
#include "wire/base/file_error.h"
#include "wire/bytecode/bytecode.h"
#include "wire/tensors/mapped_file.h"

namespace jaxexp::bindings {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// `file` is where the bytes are from, if their weights are beside it.
Program of_bytes(nb::handle bytes, const std::filesystem::path& file) {
  const View view(bytes, PyBUF_SIMPLE);
  const nb::gil_scoped_release release;
  const auto* const begin = static_cast<const std::uint8_t*>(view.data());
  auto copy = std::make_shared<const Bytes>(begin, begin + view.size_bytes());
  return {Artifact(*copy), copy, file};
}

Program of_file(const std::filesystem::path& file) {
  const nb::gil_scoped_release release;
  constexpr auto any_size = std::numeric_limits<std::uint64_t>::max();
  auto read = std::make_shared<const wire::FileBytes>(file, wire::FileBytes::Reading::at_once, any_size);
  return {Artifact(read->bytes()), read, file};
}

Program of_archive(const std::filesystem::path& file, const std::string& member, bool stable) {
  using wire::MappedFile;
  const nb::gil_scoped_release release;
  const auto how = stable ? MappedFile::How::read : MappedFile::How::mapped;
  const auto archive = translating([&] { return MappedFile::named(file, how); });
  return {Archive(archive.bytes()).artifact(member), archive.owner(), {}};
}

/// The function, its VJP, and so on.
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
  for (const Artifact& artifact : chain(program.artifact)) {
    const auto contents = translating([&] { return wire::read_contents(artifact.module(), where); });
    if (!contents || !contents->custom_calls) continue;
    for (const auto& [target, count] : *contents->custom_calls)
      if (target.starts_with("lapack_") || target.starts_with("blas_")) return true;
  }
  return false;
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
      .def_static(
          "of_bytes", &of_bytes, "buffer"_a, "file"_a,
          nb::sig("def of_bytes(buffer: typing_extensions.Buffer, file: str | os.PathLike[str]) -> Program"),
          "A copy of the bytes. `file` is where they are from if their weights are beside it; else it is empty.")
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
      .def("calls_lapack", &calls_lapack, "Whether it, or one of its VJPs, has custom calls of LAPACK.")
      .def(
          "trees",
          [](const Program& p, std::size_t order) {
            const auto all = chain(p.artifact);
            const Artifact& artifact = all.at(order);
            return nb::make_tuple(described(artifact.argument_tree()), described(artifact.result_tree()));
          },
          "order"_a,
          nb::sig("def trees(self, order: int) -> "
                  "tuple[tuple[tuple[typing.Any, ...], ...], tuple[tuple[typing.Any, ...], ...]]"),
          "The trees of arguments and results of its VJP of an order.");
}

}  // namespace jaxexp::bindings

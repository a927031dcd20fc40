// What the bytes of a module tell: views of it become texts and sets of Python.
#include "bindings/base/define.h"

#include <optional>
#include <string>
#include <string_view>

#include "bindings/base/buffer.h"
#include "bindings/base/objects.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/head.h"

namespace jaxexp::bindings {
namespace {

const wire::Path module_path{nullptr, "mlir_module_serialized"};

template <class Range, class Make>
nb::object frozenset(const Range& elements, const Make& make) {
  nb::list made = new_list();
  for (const auto& element : elements) made.append(make(element));
  return owned(PyFrozenSet_New(made.ptr()));
}

nb::tuple kind(const wire::Head::Kinds::value_type& kind) { return nb::make_tuple(text(kind.first), kind.second); }

nb::object contents(nb::handle module) {
  const Buffer buffer(module);
  const auto bytes = buffer.bytes();
  const std::optional<wire::Contents> found =
      over(bytes.size(), [&] { return wire::read_contents(bytes, module_path); });
  if (!found) return nb::none();
  const auto counts = [](const auto& counted) {
    nb::dict dict = new_dict();
    for (const auto& [name, count] : counted) dict[text(name)] = count;
    return dict;
  };
  const nb::object calls = found->custom_calls ? nb::object(counts(*found->custom_calls)) : nb::none();
  return nb::make_tuple(counts(found->operations), calls);
}

nb::object in_bodies(nb::handle module) {
  const Buffer buffer(module);
  const auto bytes = buffer.bytes();
  const std::optional<wire::Inventory> found =
      over(bytes.size(), [&] { return wire::read_inventory(bytes, module_path); });
  if (!found) return nb::none();
  nb::dict kinds = new_dict();
  for (const auto& [name, has_arrays] : found->in_bodies) kinds[text(name)] = has_arrays;
  return kinds;
}

/// Looks at the bytes in which all names of a module are; at all of them, where it is damaged.
bool may_name(nb::handle module, const nb::args& names) {
  const Buffer buffer(module);
  const auto bytes = wire::bytes_of_names(buffer.bytes());
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (nb::handle name : names) {
    const auto wanted = nb::cast<std::string_view>(name);
    if (over(all.size(), [&] { return all.find(wanted) != all.npos; })) return true;
  }
  return false;
}

nb::tuple head(nb::handle module) {
  const Buffer buffer(module);
  const wire::Head head = over(buffer.bytes().size(), [&] { return wire::read_head(buffer.bytes(), module_path); });
  const auto name = [](const std::string& operation) { return text(operation); };
  return nb::make_tuple(text(head.producer), frozenset(head.dialects, text), frozenset(head.operations, name),
                        frozenset(head.attributes, kind), frozenset(head.types, kind));
}

nb::tuple absolute_paths(nb::handle module) {
  const Buffer buffer(module);
  const auto paths = over(buffer.bytes().size(), [&] { return wire::absolute_paths(buffer.bytes(), module_path); });
  nb::list found = new_list();
  for (const std::string_view path : paths) found.append(text(path));
  return nb::tuple(found);
}

nb::object without_sources(nb::handle module) {
  const Buffer buffer(module);
  const auto changed = over(buffer.bytes().size(), [&] { return wire::without_sources(buffer.bytes(), module_path); });
  return changed ? nb::object(nb::bytes(changed->data(), changed->size())) : nb::none();
}

}  // namespace

void define_bytecode(nb::module_& m) {
  m.def(
      "check_bytecode",
      [](HasBuffer module) {
        const Buffer buffer(module);
        over(buffer.bytes().size(), [&] { wire::check_bytecode(buffer.bytes(), module_path); });
      },
      "module"_a, "Refuses the bytes of a module that MLIR's reader cannot be trusted with.");
  m.def("contents", &contents, "module"_a,
        nb::sig("def contents(module: typing_extensions.Buffer) -> "
                "tuple[dict[str, int], dict[str, int] | None] | None"),
        "How often each kind of operation, and each target of a custom call, occurs in a module, after the same check; "
        "None, or None for the targets, where it is written in a way that is not known here.");
  m.def("in_bodies", &in_bodies, "module"_a,
        nb::sig("def in_bodies(module: typing_extensions.Buffer) -> dict[str, bool] | None"),
        "The kinds of operations that combine or compare single elements, as those in a reduction do, and whether some "
        "have other values than numbers; None where the module is written in a way that is not known here.");
  m.def(
      "module_producer",
      [](HasBuffer module) {
        const Buffer buffer(module);
        const auto found = wire::producer_of(buffer.bytes());
        return found ? std::optional(text(*found)) : std::nullopt;
      },
      "module"_a, "Who wrote a module; None where the bytes are no MLIR bytecode.");
  m.def("module_may_name", &may_name, "module"_a, "names"_a,
        nb::sig("def module_may_name(module: typing_extensions.Buffer, *names: str) -> bool"),
        "Whether one of these may be the name of an operation, an attribute or a symbol in a module.");
  m.def("absolute_paths", &absolute_paths, "module"_a,
        nb::sig("def absolute_paths(module: typing_extensions.Buffer) -> tuple[str, ...]"),
        "The absolute paths of source files that a module names, in ascending order.");
  m.def("without_sources", &without_sources, "module"_a,
        nb::sig("def without_sources(module: typing_extensions.Buffer) -> bytes | None"),
        "The module with other locations in place of those that name a file which exists; None if it has none.");
  m.def("module_head", &head, "module"_a,
        nb::sig("def module_head(module: typing_extensions.Buffer) -> "
                "tuple[str, frozenset[str], frozenset[str], frozenset[tuple[str, int]], frozenset[tuple[str, int]]]"),
        "The head of a module: its producer; dialects and operations; kinds of attributes and of types, each a dialect "
        "and the number that it has for the kind.");
}

}  // namespace jaxexp::bindings

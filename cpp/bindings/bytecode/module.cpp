// From views of a module to texts and sets of Python.
#include "bindings/bytecode/module.h"

#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>
#include <string_view>

#include "bindings/base/buffer.h"
#include "bindings/base/owned.h"
#include "bindings/base/text.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/head.h"

namespace jaxexp::bindings {
namespace {

const wire::Path module_path{nullptr, "mlir_module_serialized"};

/// A frozenset of what `make` makes of each element.
template <class Range, class Make>
nb::object frozenset(const Range& elements, const Make& make) {
  nb::list made = new_list();
  for (const auto& element : elements) made.append(make(element));
  return owned(PyFrozenSet_New(made.ptr()));
}

nb::tuple kind(const wire::Head::Kinds::value_type& kind) { return nb::make_tuple(text(kind.first), kind.second); }

}  // namespace

void check_bytecode(nb::handle module) {
  const Buffer buffer(module);
  over(buffer.bytes().size(), [&] { wire::check_bytecode(buffer.bytes(), module_path); });
}

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

nb::object module_producer(nb::handle module) {
  const Buffer buffer(module);
  const auto found = wire::producer_of(buffer.bytes());
  return found ? nb::object(text(*found)) : nb::none();
}

bool module_may_name(nb::handle module, const nb::args& names) {
  const Buffer buffer(module);
  const auto bytes = wire::bytes_of_names(buffer.bytes());
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (nb::handle name : names)
    if (all.find(nb::cast<std::string_view>(name)) != all.npos) return true;
  return false;
}

nb::tuple module_head(nb::handle module) {
  const Buffer buffer(module);
  const wire::Head head = over(buffer.bytes().size(), [&] { return wire::read_head(buffer.bytes(), module_path); });
  const auto name = [](const std::string& operation) { return text(operation); };
  return nb::make_tuple(text(head.producer), frozenset(head.dialects, text), frozenset(head.operations, name),
                        frozenset(head.attributes, kind), frozenset(head.types, kind));
}

}  // namespace jaxexp::bindings

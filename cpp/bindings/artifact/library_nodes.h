// What pytree nodes of classes that nobody registered say of themselves, read once for each description.
#pragma once

#include <cstdint>
#include <utility>

#include "bindings/base/nanobind.h"
#include "wire/base/flat_map.h"
#include "wire/exported/library_node.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {

/// What nodes of libraries say of their classes.
class LibraryNodes {
 public:
  /// `read` takes auxiliary data, and returns the class and the keys of the children that it describes, or None.
  explicit LibraryNodes(nb::object read) : read_(std::move(read)) {}

  /// Read once, however many nodes say it. None where a custom node says nothing.
  nb::object operator[](const wire::schema::PyTreeDef& node) {
    const auto* data = node.custom_auxdata();
    if (!data || read_.is_none() || !wire::is_library_node(node)) return nb::none();
    const auto [known, is_new] = known_.insert(reinterpret_cast<std::uintptr_t>(data));
    if (is_new) known = read_(nb::bytes(data->data(), data->size()));
    const bool fits = !known.is_none() && nb::len(nb::object(known[1])) == wire::Values::length(node.children());
    return fits ? known : nb::none();
  }

 private:
  const nb::object read_;
  wire::FlatMap<nb::object> known_;  // by the places of the data
};

}  // namespace jaxexp::bindings

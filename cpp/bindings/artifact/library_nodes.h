// What custom pytree nodes say of themselves, read once for each description.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "wire/base/flat_map.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {

/// What custom nodes say of their classes and their children.
class LibraryNodes {
 public:
  /// `read` takes auxiliary data, and the node's name where that says what is in the data, otherwise None. It returns
  /// the name of the class, where the data says it, and the keys of the children; or None where it does not say them.
  explicit LibraryNodes(nb::object read) : read_(std::move(read)) {}

  /// Read once, however many nodes say it. None where a custom node says nothing.
  nb::object operator[](const wire::schema::PyTreeDef& node) {
    const auto* data = node.custom_auxdata();
    if (!data || read_.is_none()) return nb::none();
    const bool is_described = wire::is_library_node(node);
    const bool is_dict = node.custom_name()->string_view() == std::string_view("collections.OrderedDict");
    // Data lies at multiples of 4, so nodes of these kinds may share it.
    const auto [known, is_new] = known_.insert(reinterpret_cast<std::uintptr_t>(data) + is_described + 2 * is_dict);
    if (is_new) {
      const bool is_known = is_described || is_dict;
      const nb::object name = is_known ? nb::object(text(node.custom_name()->string_view())) : nb::none();
      known = read_(nb::bytes(data->data(), data->size()), name);
    }
    const bool fits = !known.is_none() && nb::len(nb::object(known[1])) == wire::Values::length(node.children());
    return fits ? known : nb::none();
  }

 private:
  const nb::object read_;
  wire::FlatMap<nb::object> known_;  // by the places of the data
};

}  // namespace jaxexp::bindings

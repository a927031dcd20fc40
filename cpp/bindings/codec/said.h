// What an artifact says of a function's signature beside the fields of an Exported.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// Objects are not valid if there is nothing to say.
struct Said {
  nb::object weak_arguments, weak_results;  // indices
  nb::object in_tree, out_tree;             // as the artifact describes them, with classes by their names

  /// All four, with None for what is not valid; or None.
  nb::object for_python() const {
    if (!weak_arguments.is_valid() && !weak_results.is_valid() && !in_tree.is_valid() && !out_tree.is_valid())
      return nb::none();
    const auto or_none = [](const nb::object& object) { return object.is_valid() ? object : nb::none(); };
    return nb::make_tuple(or_none(weak_arguments), or_none(weak_results), or_none(in_tree), or_none(out_tree));
  }
};

}  // namespace jaxexp::bindings

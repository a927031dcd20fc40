// What a module is made of, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "bindings/base/buffer.h"
#include "bindings/base/text.h"
#include "wire/bytecode/bytecode.h"

namespace jaxexp::bindings {

/// A pair of dicts: kinds of operations, and targets of custom calls (None where they are not known), each with how
/// often it occurs. None for bytecode of a version that is not known here.
inline nb::object contents(nb::handle module) {
  const Buffer buffer(module);
  const auto bytes = buffer.bytes();
  const std::optional<wire::Contents> found =
      over(bytes.size(), [&] { return wire::read_contents(bytes, {nullptr, "mlir_module_serialized"}); });
  if (!found) return nb::none();
  const auto counts = [](const auto& counted) {
    nb::dict dict;
    for (const auto& [name, count] : counted) dict[text(name)] = count;
    return dict;
  };
  const nb::object calls = found->custom_calls ? nb::object(counts(*found->custom_calls)) : nb::none();
  return nb::make_tuple(counts(found->operations), calls);
}

}  // namespace jaxexp::bindings

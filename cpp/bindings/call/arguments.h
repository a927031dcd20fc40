// The arguments of an eager call, looked at before jit's own dispatch gets them.
#pragma once

#include <utility>

#include "bindings/base/nanobind.h"
#include "bindings/base/owned.h"

namespace jaxexp::bindings {

/// Knows the leaves that jit's dispatch reads right: device arrays, the numbers of Python and NumPy, and NumPy arrays
/// in the machine's byte order. Once a function is compiled, the dispatch looks only at the dtype's kind and size: it
/// takes big-endian numbers for others, and forgets the mask of a masked array.
class Arguments {
 public:
  /// `array`, `ndarray` and `number` are the types of device arrays, of NumPy's arrays and of its numbers. `registry`
  /// knows all pytree nodes, and `registered` has the types that were registered: of other namedtuples, the children
  /// are the items.
  Arguments(nb::object array, nb::object ndarray, nb::object number, nb::handle registry, nb::dict registered)
      : array_(std::move(array)),
        ndarray_(std::move(ndarray)),
        number_(std::move(number)),
        flatten_one_level_(registry.attr("flatten_one_level")),
        registered_(std::move(registered)),
        fields_(owned(PyUnicode_InternFromString("_fields"))),
        dtype_(owned(PyUnicode_InternFromString("dtype"))),
        is_native_(owned(PyUnicode_InternFromString("isnative"))) {}

  /// Whether all leaves of these arguments are such leaves. Where the answer is no, it need not be a mistake: leaves of
  /// other types have to be looked at one by one.
  bool are_plain(const nb::tuple& args, const nb::dict& kwargs) const { return is_plain(args) && is_plain(kwargs); }

 private:
  bool is_plain(nb::handle tree) const;
  bool is_namedtuple(nb::handle tree) const;
  bool is_other_node_plain(nb::handle tree) const;

  nb::object array_, ndarray_, number_, flatten_one_level_, registered_, fields_, dtype_, is_native_;
};

}  // namespace jaxexp::bindings

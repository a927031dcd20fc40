// The one place that keeps Python objects beyond a call.
#include "bindings/base/jax_refs.h"

#include <stdexcept>

namespace jaxexp::bindings {
namespace {

std::shared_ptr<const JaxRefs>& current() {
  static std::shared_ptr<const JaxRefs> refs;
  return refs;
}

std::array<nb::object, 3> three(nb::handle jax, const char* name) {
  const nb::object members = jax.attr(name);
  return {members[0], members[1], members[2]};
}

}  // namespace

JaxRefs::JaxRefs(nb::handle jax)
    :
#define JAXEXP_READ(name) name(jax.attr(#name)),
      JAXEXP_BOUND(JAXEXP_READ)
#undef JAXEXP_READ
#define JAXEXP_INTERN(name) owned(PyUnicode_InternFromString(#name)),
          names{JAXEXP_NAMES(JAXEXP_INTERN)},
#undef JAXEXP_INTERN
      tree_state_known(nb::cast<bool>(jax.attr("tree_state_known"))),
      axis_types(three(jax, "axis_types")),
      memory_spaces(three(jax, "memory_spaces")) {
  for (nb::handle arguments : jax.attr("plain_avals")) plain_avals.push_back(nb::borrow(arguments));
  for (nb::handle dtype : jax.attr("dtypes")) {
    kinds_of_dtypes[dtype] = dtypes.size();
    dtypes.push_back(nb::borrow(dtype));
  }
}

nb::object JaxRefs::names_of(const NamedValues& fields) const {
  const auto are_of = [&](const nb::object& names) {
    if (static_cast<std::size_t>(PyTuple_GET_SIZE(names.ptr())) != fields.size()) return false;
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (PyTuple_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i)) != fields[i].first.ptr()) return false;
    return true;
  };
  for (const nb::object& known : field_names_)
    if (are_of(known)) return known;
  return field_names_.emplace_back(
      new_tuple(fields.size(), [&](std::size_t i) { return nb::borrow(fields[i].first); }));
}

std::shared_ptr<const JaxRefs> jax_refs() {
  if (!current())
    throw std::runtime_error("the codec knows no JAX: jaxexp._native.bind was not called yet, or Python is ending");
  return current();
}

void bind(nb::handle jax) {
  auto refs = std::make_shared<const JaxRefs>(jax);
  current().swap(refs);
}

void unbind_with(nb::module_& module) {
  module.attr("_bound") = nb::capsule(&current(), [](void*) noexcept { current().reset(); });
}

}  // namespace jaxexp::bindings

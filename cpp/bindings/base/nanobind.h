// nanobind, by the names that the bindings have for it, and its casters: a type has the same one everywhere.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "wire/base/digest.h"

namespace jaxexp::bindings {

namespace nb = nanobind;
using namespace nb::literals;

/// Releases Python's lock, which other threads take meanwhile.
using Unlocked = nb::gil_scoped_release;

/// Calls a function meanwhile: one that may wait, or takes long, and needs no Python.
template <class Function>
auto unlocked(const Function& function) {
  const Unlocked released;
  return function();
}

/// An argument that is a list or a dict of these types. For nb::typed, nanobind makes an empty one first, and goes on
/// where it gets no memory for that.
template <class Object, class... Types>
struct Argument : Object {
  static constexpr auto Name = nb::detail::make_caster<nb::typed<Object, Types...>>::Name;
  using Object::Object;
};

/// The members of a struct that is a tuple in Python, in their order. None for all others.
template <class Struct>
inline constexpr std::tuple<> fields;

template <class Struct, class... Field>
std::tuple<Field...> tuple_of(const std::tuple<Field Struct::*...>& fields);

}  // namespace jaxexp::bindings

template <class Struct>
  requires(std::tuple_size_v<decltype(jaxexp::bindings::fields<Struct>)> > 0)
struct nanobind::detail::type_caster<Struct> {
  using Tuple = decltype(jaxexp::bindings::tuple_of(jaxexp::bindings::fields<Struct>));
  NB_TYPE_CASTER(Struct, make_caster<Tuple>::Name)

  bool from_python(handle object, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<Tuple> caster;
    if (!caster.from_python(object, flags, cleanup)) return false;
    value = std::apply([](auto&&... field) { return Struct{std::move(field)...}; }, caster.operator Tuple());
    return true;
  }
  static handle from_cpp(const Struct& object, rv_policy policy, cleanup_list* cleanup) noexcept {
    const auto values = [&](auto... field) { return std::tie(object.*field...); };
    return make_caster<Tuple>::from_cpp(std::apply(values, jaxexp::bindings::fields<Struct>), policy, cleanup);
  }
};

template <>
struct nanobind::detail::type_caster<jaxexp::wire::Digest> {
  NB_TYPE_CASTER(jaxexp::wire::Digest, const_name("bytes"))

  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    if (!PyBytes_Check(object.ptr()) || PyBytes_GET_SIZE(object.ptr()) != Py_ssize_t{sizeof value}) return false;
    std::copy_n(PyBytes_AS_STRING(object.ptr()), sizeof value, value.begin());
    return true;
  }
  static handle from_cpp(const jaxexp::wire::Digest& digest, rv_policy, cleanup_list*) noexcept {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(digest.data()), sizeof digest);
  }
};

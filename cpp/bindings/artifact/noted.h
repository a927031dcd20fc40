// The weights and the cases of a trailer, which are tuples in Python.
#pragma once

#include "bindings/base/nanobind.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::bindings {

template <>
inline constexpr auto fields<wire::Weights::File> =
    std::tuple(&wire::Weights::File::name, &wire::Weights::File::size, &wire::Weights::File::content);
template <>
inline constexpr auto fields<wire::Weights::Tensor> =
    std::tuple(&wire::Weights::Tensor::name, &wire::Weights::Tensor::file, &wire::Weights::Tensor::size,
               &wire::Weights::Tensor::digest);
template <>
inline constexpr auto fields<wire::Weights::OtherName> =
    std::tuple(&wire::Weights::OtherName::name, &wire::Weights::OtherName::tensor);
template <>
inline constexpr auto fields<wire::Weights> =
    std::tuple(&wire::Weights::files, &wire::Weights::tensors, &wire::Weights::other_names);

template <>
inline constexpr auto fields<wire::Cases::Drawn> =
    std::tuple(&wire::Cases::Drawn::distribution, &wire::Cases::Drawn::seed, &wire::Cases::Drawn::first,
               &wire::Cases::Drawn::second);
template <>
inline constexpr auto fields<wire::Cases::Tolerance> =
    std::tuple(&wire::Cases::Tolerance::relative, &wire::Cases::Tolerance::absolute);
template <>
inline constexpr auto fields<wire::Cases::Value> =
    std::tuple(&wire::Cases::Value::dtype, &wire::Cases::Value::shape, &wire::Cases::Value::data,
               &wire::Cases::Value::tensor, &wire::Cases::Value::drawn, &wire::Cases::Value::tolerance);
template <>
inline constexpr auto fields<wire::Cases::Case> =
    std::tuple(&wire::Cases::Case::name, &wire::Cases::Case::order, &wire::Cases::Case::arguments,
               &wire::Cases::Case::results, &wire::Cases::Case::recording, &wire::Cases::Case::trace);
template <>
inline constexpr auto fields<wire::Cases> =
    std::tuple(&wire::Cases::cases, &wire::Cases::recordings, &wire::Cases::files, &wire::Cases::tensors);

}  // namespace jaxexp::bindings

template <>
struct nanobind::detail::type_caster<jaxexp::wire::Cases::Data> {
  NB_TYPE_CASTER(jaxexp::wire::Cases::Data, const_name("bytes"))

  bool from_python(handle object, std::uint32_t, cleanup_list*) noexcept {
    if (!PyBytes_Check(object.ptr())) return false;
    value.bytes.assign(PyBytes_AS_STRING(object.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr())));
    return true;
  }
  static handle from_cpp(const jaxexp::wire::Cases::Data& data, rv_policy, cleanup_list*) noexcept {
    return PyBytes_FromStringAndSize(data.bytes.data(), static_cast<Py_ssize_t>(data.bytes.size()));
  }
};

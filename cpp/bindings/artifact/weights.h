// The weights of a trailer, which are tuples in Python.
#pragma once

#include "bindings/base/nanobind.h"
#include "wire/artifact/weights.h"

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

}  // namespace jaxexp::bindings

// A member of an archive's index, as an object of Python.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/base/nanobind.h"
#include "wire/archive/member.h"
#include "wire/archive/weights.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::bindings {

template <>
inline constexpr auto fields<wire::Member::Module> =
    std::tuple(&wire::Member::Module::position, &wire::Member::Module::size, &wire::Member::Module::digest);
template <>
inline constexpr auto fields<wire::ArchiveWeights::Tensor> =
    std::tuple(&wire::ArchiveWeights::Tensor::digest, &wire::ArchiveWeights::Tensor::position,
               &wire::ArchiveWeights::Tensor::size);

/// What stands behind the index from `position` on: the directory of the ZIP file, which has the index as a member,
/// too, and its end with the comment.
nb::bytes last_bytes(std::vector<wire::ZipMember> files, const wire::Member::Place& index, std::uint64_t position,
                     const nb::bytes& comment);

}  // namespace jaxexp::bindings

/// Only on the way to Python: on the way back it would need memory in a function that is `noexcept`.
template <>
struct nanobind::detail::type_caster<jaxexp::wire::Text> {
  NB_TYPE_CASTER(jaxexp::wire::Text, make_caster<std::string>::Name)

  static handle from_cpp(const jaxexp::wire::Text& text, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<std::string>::from_cpp(text.str(), policy, cleanup);
  }
};

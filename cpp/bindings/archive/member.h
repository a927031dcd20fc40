// A member of an archive's index, as an object of Python.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bindings/base/nanobind.h"
#include "wire/archive/member.h"
#include "wire/archive/zip_file.h"
#include "wire/base/digest.h"

namespace jaxexp::bindings {

/// What stands behind the index from `position` on: the directory of the ZIP file, which has the index as a member,
/// too, and its end with the comment.
nb::bytes last_bytes(std::vector<wire::ZipMember> files, const wire::Member::Place& index, std::uint64_t position,
                     const nb::bytes& comment);

void define_member(nb::module_& m);

}  // namespace jaxexp::bindings

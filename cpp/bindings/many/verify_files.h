// Verification of many files in threads, for Python.
#pragma once

#include <cstddef>

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// For each file: its size, whether it has digests, whether weights are beside it, and None or what is wrong: the
/// number of an error of the system, or where, what was expected, and what was found. Checked are structure, digests,
/// and the bytecode of modules.
nb::list verify_files(const nb::list& paths, std::size_t workers);

}  // namespace jaxexp::bindings

// What each room puts into the native module.
#pragma once

#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

void define_apart(nb::module_& m);
void define_archive_end(nb::module_& m);
void define_archive_index(nb::module_& m);
void define_archive_member(nb::module_& m);
void define_archive_records(nb::module_& m);
void define_archive_verification(nb::module_& m);
void define_artifact(nb::module_& m);
void define_bytecode(nb::module_& m);
void define_call(nb::module_& m);
void define_compiled(nb::module_& m);
void define_encoding(nb::module_& m);
void define_read_many(nb::module_& m);
void define_tensors(nb::module_& m);
void define_verify_files(nb::module_& m);

}  // namespace jaxexp::bindings

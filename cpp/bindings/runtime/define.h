// What each file puts into the module, and how the C++ objects stand in Python.
#pragma once

#include <exception>
#include <filesystem>
#include <memory>
#include <vector>

#include "bindings/base/nanobind.h"
#include "jaxexp/runtime.h"

namespace jaxexp::bindings {

/// An artifact that was verified, and what keeps its memory. Nothing of it belongs to Python: the runtime lets go of it
/// in threads that know no Python.
struct Program {
  Artifact artifact;
  std::shared_ptr<const void> owner;
  std::filesystem::path file;  // beside which its weights are; empty where they are elsewhere, or nowhere
};

/// Values as tuples: path, dtype, dimensions as texts, and the text of the value for people.
nb::tuple described(const std::vector<Value>& values);
/// A tree as tuples, each before its children: kind, number of children, and keys of a dict, or name and data of a
/// custom node.
nb::tuple described(const std::vector<Node>& nodes);

/// Makes the errors of the runtime the exceptions of jaxexp._errors.
void translate_runtime_errors();
/// The same for one error, in functions that Python itself calls.
void set_python_error(const std::exception_ptr& exception) noexcept;

void define_runtime_array(nb::module_& m);
void define_program(nb::module_& m);
void define_function(nb::module_& m);
void define_plugin(nb::module_& m);

}  // namespace jaxexp::bindings

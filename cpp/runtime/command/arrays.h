// Arguments from files of NumPy, and results to them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/command/arguments.h"

namespace jaxexp::command {

/// The arguments that a function takes. Throws InputError; RunError or std::system_error, with the name of the file.
std::vector<Array> read_arguments(const Arguments& arguments, const std::vector<Value>& values);

/// Returns the size of the file. Throws RunError or std::system_error, with the name of the file.
std::size_t write_results(const std::string& file, const std::vector<Array>& results, const Artifact& function);

}  // namespace jaxexp::command

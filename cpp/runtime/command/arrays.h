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

/// A .npy file of an array, when it is computed. Throws RunError.
std::string npy_file(const Array& array);

/// What results are called in a .npz file: their paths. Long paths are cut, and may be the same then: all but the first
/// have numbers, as in "arr_3".
std::vector<std::string> result_names(const std::vector<Value>& results);

/// Writes a file of another name, which then replaces this one; or into what is no file, such as a pipe. Throws
/// std::system_error, with the name of the file.
void write_file(const std::string& file, const std::string& bytes);

/// Returns the size of the file. Throws RunError or std::system_error, with the name of the file.
std::size_t write_results(const std::string& file, const std::vector<Array>& results, const Artifact& function);

}  // namespace jaxexp::command

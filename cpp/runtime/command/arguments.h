// The command line of jaxexp-run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "jaxexp/runtime.h"

namespace jaxexp::command {

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What is wrong with an input: the command line, or what it says of a file.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Arguments {
  /// Throws UsageError.
  Arguments(int count, char** texts);

  std::string plugin, artifact, member, out, executables, save_executable, compile_cache, weights, lapack;
  std::vector<std::string> inputs;
  std::vector<std::size_t> devices;
  Runtime::Options options;
  std::vector<std::map<std::string, std::int64_t>> sizes;
  std::size_t repeat = 0;
  std::size_t vjp_order = 0;
  std::uint64_t max_drawn_bytes = std::uint64_t{1} << 32;
  bool cases = false, inspect = false, help = false, version = false, stable = false, pad = false, only_sizes = false;

  /// Whether the function is called: to keep its code, nobody needs inputs.
  bool calls() const;

 private:
  /// Takes "fleet.zip::resnet/b8" apart.
  void split_member();
  /// Refuses what is given for nothing. Throws UsageError.
  void check_cases() const;
};

extern const char* const usage;

/// A number as the argument `value`, which is a scalar. Throws InputError.
Array scalar(const std::string& text, const Value& value);

/// Throws InputError. `expected` is what the argument takes beside a file, as in "a number, or ".
[[noreturn]] void refuse_input(const std::string& text, const Value& value, const std::string& expected = {});

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

// jaxexp-run: runs a serialized function from the command line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "jaxexp/archive.h"
#include "jaxexp/runtime.h"
#include "runtime/command/arguments.h"
#include "runtime/command/arrays.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/bytecode/bytecode.h"
#include "wire/tensors/mapped_file.h"

namespace {

using jaxexp::Array;
using jaxexp::Artifact;
using jaxexp::RunError;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// The VJP of this order of a function, or of an artifact.
template <class Function>
Function vjp_of(Function function, std::size_t order) {
  for (std::size_t i = 0; i < order; ++i) {
    auto vjp = function.vjp();
    if (!vjp) refuse("it has " + std::to_string(i) + " VJPs, and not " + std::to_string(order));
    function = std::move(*vjp);
  }
  return function;
}

Artifact member_of(std::span<const std::uint8_t> bytes, const std::string& name) {
  const jaxexp::Archive archive(bytes);
  if (!archive.contains(name)) refuse("there is no member '" + name + "' in the archive");
  return archive.artifact(name);
}

void print(const char* title, const std::vector<jaxexp::Value>& values) {
  std::cout << title << ":\n";
  for (const jaxexp::Value& value : values) {
    std::cout << "  " << value.path << ": " << value.str();
    if (value.sharding) std::cout << " over " << value.sharding->str();
    std::cout << '\n';
  }
}

void print_custom_calls(const Artifact& artifact) {
  const jaxexp::wire::Path where{nullptr, "mlir_module_serialized"};
  try {
    const auto contents = jaxexp::wire::read_contents(artifact.module(), where);
    if (!contents || !contents->custom_calls || contents->custom_calls->empty()) return;
    std::cout << "custom calls:";
    for (const auto& [target, count] : *contents->custom_calls) std::cout << ' ' << jaxexp::wire::escaped(target);
    std::cout << '\n';
  } catch (const jaxexp::wire::Error& error) {
    throw jaxexp::DeserializationError(error.path, error.expected, error.found);
  }
}

void print_weights(const Artifact& artifact) {
  const auto weights = artifact.weights();
  if (!weights) return;
  std::uint64_t bytes = 0;
  for (const auto& tensor : weights->tensors) bytes += tensor.size;
  std::cout << "weights: the first " << weights->tensors.size() << " arguments, " << bytes << " bytes in";
  if (weights->is_in_archive())
    std::cout << " the archive";
  else
    for (const auto& file : weights->files) std::cout << ' ' << jaxexp::wire::escaped(file.name);
  std::cout << '\n';
}

void inspect(const Artifact& artifact) {
  std::cout << artifact.function_name() << ", for " << artifact.nr_devices() << " device(s)\nplatforms:";
  for (const std::string_view platform : artifact.platforms()) std::cout << ' ' << platform;
  std::cout << '\n';
  print("arguments", artifact.arguments());
  print("results", artifact.results());
  print_weights(artifact);
  print_custom_calls(artifact);
  int order = 0;
  for (auto vjp = artifact.vjp(); vjp; vjp = vjp->vjp()) ++order;
  std::cout << "VJPs: " << order << '\n';
}

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<Array> timed_call(const jaxexp::Function& function, const std::vector<Array>& arguments, double& took) {
  const auto start = Clock::now();
  auto results = function.call(arguments);
  for (const Array& result : results) result.wait();
  took = milliseconds_since(start);
  return results;
}

void repeat(const jaxexp::Function& function, const std::vector<Array>& arguments, std::size_t times) {
  std::vector<double> took(times);
  for (double& one : took) static_cast<void>(timed_call(function, arguments, one));
  std::ranges::sort(took);
  std::printf("%zu calls: median %.3f ms, fastest %.3f ms\n", times, took[times / 2], took.front());
}

void inspect_file(const jaxexp::command::Arguments& arguments) {
  const jaxexp::wire::FileBytes file(arguments.artifact, jaxexp::wire::FileBytes::Reading::at_once,
                                     std::numeric_limits<std::uint64_t>::max());
  Artifact artifact = arguments.member.empty() ? Artifact(file.bytes()) : member_of(file.bytes(), arguments.member);
  inspect(vjp_of(std::move(artifact), arguments.vjp_order));
}

void run(const jaxexp::command::Arguments& arguments) {
  const jaxexp::Runtime runtime(std::filesystem::path(arguments.plugin), arguments.options);
  const jaxexp::LoadOptions options{arguments.devices, arguments.executables, arguments.weights};
  std::optional<jaxexp::wire::MappedFile> archive;  // may have more weights than memory has room for
  if (!arguments.member.empty()) archive = jaxexp::wire::MappedFile::named(arguments.artifact);
  const jaxexp::Function function =
      vjp_of(archive ? runtime.load(member_of(archive->bytes(), arguments.member), options)
                     : runtime.load(std::filesystem::path(arguments.artifact), options),
             arguments.vjp_order);
  if (!arguments.save_executable.empty()) return function.save_executable(arguments.save_executable);
  const std::vector<Array> inputs = jaxexp::command::read_arguments(arguments, function.arguments());
  if (arguments.repeat > 0) {
    const auto start = Clock::now();
    function.compile();
    std::printf("compiled in %.1f ms\n", milliseconds_since(start));
  }
  double first = 0;
  const std::vector<Array> results = timed_call(function, inputs, first);
  if (const std::string why = function.why_compiled(); !why.empty())
    std::cerr << "jaxexp-run: compiled, because the code in " << arguments.executables << " is not used: " << why
              << '\n';
  if (arguments.out.empty()) {
    const auto values = function.artifact().results();
    for (std::size_t i = 0; i < results.size(); ++i) std::cout << values[i].path << ": " << results[i].str() << '\n';
  } else {
    jaxexp::command::write_results(arguments.out, results, function.artifact());
  }
  if (arguments.repeat > 0) {
    std::printf("first call: %.3f ms\n", first);
    repeat(function, inputs, arguments.repeat);
  }
}

}  // namespace

int main(int count, char** texts) {
  constexpr int failed = 1, misused = 2;
  try {
    const jaxexp::command::Arguments arguments(count, texts);
    if (arguments.help)
      std::cout << jaxexp::command::usage;
    else if (arguments.inspect)
      inspect_file(arguments);
    else
      run(arguments);
  } catch (const jaxexp::command::UsageError& error) {
    std::cerr << "jaxexp-run: " << error.what() << "\n" << jaxexp::command::usage;
    return misused;
  } catch (const std::exception& error) {
    std::cerr << "jaxexp-run: " << error.what() << '\n';
    return failed;
  }
}

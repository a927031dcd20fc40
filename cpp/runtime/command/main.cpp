// jaxexp-run: runs a serialized function from the command line.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxexp/archive.h"
#include "jaxexp/runtime.h"
#include "runtime/api/given.h"
#include "runtime/command/arguments.h"
#include "runtime/command/arrays.h"
#include "wire/api/beside_weights.h"
#include "wire/api/translating.h"
#include "wire/bytecode/bytecode.h"
#include "wire/tensors/mapped_file.h"

namespace {

using jaxexp::Array;
using jaxexp::Artifact;
using jaxexp::RunError;
using jaxexp::Value;
using jaxexp::command::Arguments;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// Arguments with the paths of a call in Python.
std::vector<Value> beside_weights(std::vector<Value> arguments) {
  for (Value& argument : arguments) argument.path = jaxexp::wire::beside_weights(argument.path);
  return arguments;
}

/// The VJP of this order of a function, or of an artifact.
template <class Function>
Function vjp_of(Function function, std::size_t order) {
  for (std::size_t i = 0; i < order; ++i) {
    auto vjp = function.vjp();
    if (!vjp)
      refuse("the function has no VJP of order " + std::to_string(i + 1) +
             ": it was saved with vjp_order=" + std::to_string(i));
    function = std::move(*vjp);
  }
  return function;
}

Artifact member_of(std::span<const std::uint8_t> bytes, const Arguments& arguments) {
  const jaxexp::Archive archive(bytes);
  if (!archive.contains(arguments.member))
    refuse("there is no member '" + arguments.member + "' in the archive " + arguments.artifact);
  return archive.artifact(arguments.member);
}

bool is_zip(const std::string& file) {
  constexpr std::string_view head = "PK\3\4";
  std::array<char, head.size()> found{};
  std::ifstream(file, std::ios::binary).read(found.data(), found.size());
  return std::ranges::equal(found, head);
}

/// Reads the artifact by this function. Errors say which file it is, and whether it is an archive.
template <class Read>
auto reading(const Arguments& arguments, const Read& read) {
  try {
    return read();
  } catch (const jaxexp::WeightsError&) {  // which names a file of its own
    throw;
  } catch (const jaxexp::DeserializationError& error) {
    const std::string& file = arguments.artifact;
    if (arguments.member.empty() && is_zip(file))
      refuse(file + " is an archive: name a member of it, as in " + file + "::resnet/b8 ('jaxexp ls' lists them)");
    throw error.in_file(file + (arguments.member.empty() ? "" : "::" + arguments.member));
  }
}

/// What arguments or results are, line by line. A line ends with what `meaning` says of the value, by its number.
void print(const char* title, const std::vector<Value>& values,
           const std::function<std::string(std::size_t)>& meaning) {
  std::cout << title << ":\n";
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::cout << "  " << values[i].path << ": " << values[i].str();
    if (values[i].sharding) std::cout << " over " << values[i].sharding->str();
    std::cout << meaning(i) << '\n';
  }
}

void print_custom_calls(const Artifact& artifact) {
  const jaxexp::wire::Path where{nullptr, "mlir_module_serialized"};
  const auto contents = jaxexp::translating([&] { return jaxexp::wire::read_contents(artifact.module(), where); });
  if (!contents || !contents->custom_calls || contents->custom_calls->empty()) return;
  std::cout << "custom calls:";
  for (const auto& [target, count] : *contents->custom_calls) std::cout << ' ' << jaxexp::wire::escaped(target);
  std::cout << '\n';
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

/// What a value of a VJP is to the function that it belongs to.
std::string meaning_in_vjp(const Artifact& function, const std::vector<Value>& arguments, std::size_t argument) {
  if (argument < arguments.size()) return ", " + arguments[argument].path + " of the function";
  return ", the cotangent of " + function.results().at(argument - arguments.size()).path;
}

/// The arguments of a function, whose VJP has numbers for paths. Weights are counted as in Python, too.
std::vector<Value> arguments_of(const Artifact& artifact, bool is_vjp) {
  auto arguments = artifact.arguments();
  return !is_vjp && artifact.weights() ? beside_weights(std::move(arguments)) : arguments;
}

/// `primal` is what the artifact is the VJP of; it may be a VJP itself.
void inspect(const Artifact& artifact, const std::optional<Artifact>& primal, bool primal_is_vjp) {
  std::cout << artifact.function_name() << ", for " << artifact.nr_devices() << " device(s)\nplatforms:";
  for (const std::string_view platform : artifact.platforms()) std::cout << ' ' << platform;
  std::cout << '\n';
  const auto taken = primal ? arguments_of(*primal, primal_is_vjp) : std::vector<Value>();
  print("arguments", arguments_of(artifact, primal.has_value()),
        [&](std::size_t i) { return primal ? meaning_in_vjp(*primal, taken, i) : ""; });
  print("results", artifact.results(),
        [&](std::size_t i) { return primal ? ", the cotangent of " + taken.at(i).path : ""; });
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

/// The results, when they are there, and how many milliseconds that took.
std::pair<std::vector<Array>, double> timed_call(const jaxexp::Function& function, const std::vector<Array>& inputs) {
  const auto start = Clock::now();
  auto results = function.call(inputs);
  for (const Array& result : results) result.wait();
  return {std::move(results), milliseconds_since(start)};
}

void repeat(const jaxexp::Function& function, const std::vector<Array>& inputs, std::size_t times) {
  std::vector<double> took(times);
  for (double& one : took) one = timed_call(function, inputs).second;
  std::ranges::sort(took);
  std::printf("%zu calls: median %.3f ms, fastest %.3f ms\n", times, took[times / 2], took.front());
}

void inspect_file(const Arguments& arguments) {
  const auto file = jaxexp::runtime::opened(arguments.artifact);
  reading(arguments, [&] {
    const Artifact artifact = arguments.member.empty() ? Artifact(file->bytes()) : member_of(file->bytes(), arguments);
    const std::size_t order = arguments.vjp_order;
    if (order == 0)
      inspect(artifact, std::nullopt, false);
    else
      inspect(vjp_of(artifact, order), vjp_of(artifact, order - 1), order > 1);
  });
}

void call(const jaxexp::Function& function, const Arguments& arguments) {
  const auto values = function.arguments();
  const std::vector<Array> inputs = jaxexp::command::read_arguments(arguments, values);
  if (arguments.repeat > 0) {
    const auto start = Clock::now();
    function.compile();
    const double took = milliseconds_since(start);
    if (!arguments.executables.empty() && function.why_compiled().empty())
      std::printf("code from %s in %.1f ms\n", arguments.executables.c_str(), took);
    else
      std::printf("compiled in %.1f ms\n", took);
  }
  const auto [results, first] = timed_call(function, inputs);
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

void run(const Arguments& arguments) {
  const jaxexp::Runtime runtime(std::filesystem::path(arguments.plugin), arguments.options);
  const jaxexp::LoadOptions options{arguments.devices, arguments.executables, arguments.weights};
  std::optional<jaxexp::wire::MappedFile> archive;  // may have more weights than memory has room for
  if (!arguments.member.empty()) archive = jaxexp::wire::MappedFile::named(arguments.artifact);
  const jaxexp::Function function = reading(arguments, [&] {
    return vjp_of(archive ? runtime.load(member_of(archive->bytes(), arguments), options)
                          : runtime.load(std::filesystem::path(arguments.artifact), options),
                  arguments.vjp_order);
  });
  if (!arguments.save_executable.empty()) function.save_executable(arguments.save_executable);
  if (arguments.calls()) call(function, arguments);
}

}  // namespace

int main(int count, char** texts) {
  constexpr int failed = 1, misused = 2;
  try {
    const Arguments arguments(count, texts);
    if (arguments.help)
      std::cout << jaxexp::command::usage;
    else if (arguments.version)
      std::cout << "jaxexp-run " JAXEXP_VERSION "\n";
    else if (arguments.inspect)
      inspect_file(arguments);
    else
      run(arguments);
  } catch (const jaxexp::command::UsageError& error) {
    std::cerr << "jaxexp-run: " << error.what() << ": 'jaxexp-run --help' says what there is\n";
    return misused;
  } catch (const std::exception& error) {
    std::cerr << "jaxexp-run: " << error.what() << '\n';
    return failed;
  }
}

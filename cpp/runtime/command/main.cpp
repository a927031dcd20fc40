// jaxexp-run: runs a serialized function from the command line.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "jaxexp/runtime.h"
#include "jaxexp/version.h"
#include "runtime/api/array.h"
#include "runtime/command/arguments.h"
#include "runtime/command/cases.h"
#include "runtime/command/shown.h"
#include "wire/api/translating.h"
#include "wire/base/error.h"
#include "wire/bytecode/bytecode.h"
#include "wire/tensors/mapped_file.h"

namespace {

using jaxexp::Array;
using jaxexp::Artifact;
using jaxexp::RunError;
using jaxexp::Value;
using jaxexp::command::Arguments;

constexpr int failed = 1, misused = 2;  // exit statuses

#if defined(__OPTIMIZE__) || (defined(_MSC_VER) && defined(NDEBUG))
constexpr bool is_optimized = true;
#else
constexpr bool is_optimized = false;  // which benchmarks ask about
#endif

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// A line of what this program prints. Whoever wrote an artifact chose the names in it.
void say(const std::string& line, std::ostream& stream = std::cout) { stream << jaxexp::escaped(line) << '\n'; }

void complain(const std::string& message) { say("jaxexp-run: " + message, std::cerr); }

std::string joined(const std::string& title, const auto& texts) {
  std::string line = title;
  for (const auto& text : texts) (line += ' ') += text;
  return line;
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

bool is_zip(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return false;  // what is in a pipe is read once
  constexpr std::string_view head = "PK\3\4";
  std::array<char, head.size()> found{};
  std::ifstream(file, std::ios::binary).read(found.data(), found.size());
  return std::ranges::equal(found, head);
}

std::string name_of(const Arguments& arguments) {
  return arguments.artifact + (arguments.member.empty() ? "" : "::" + arguments.member);
}

/// Reads the artifact by this function. Errors say which file it is, and whether it is an archive.
template <class Read>
auto reading(const Arguments& arguments, const Read& read) {
  const std::string& file = arguments.artifact;
  if (arguments.member.empty() && is_zip(file))
    refuse(file + " is an archive: name a member of it, as in " + file + "::resnet/b8 ('jaxexp ls' lists them)");
  try {
    return read();
  } catch (const jaxexp::WeightsError&) {  // which names a file of its own
    throw;
  } catch (const jaxexp::DeserializationError& error) {
    throw error.in_file(name_of(arguments));
  }
}

/// What arguments or results are, line by line. A line ends with what `meaning` says of the value, by its number.
void print(const char* title, const std::vector<Value>& values,
           const std::function<std::string(std::size_t)>& meaning) {
  say(std::string(title) + ':');
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::string line = "  " + values[i].path + ": " + values[i].str();
    if (values[i].sharding) line += " over " + values[i].sharding->str();
    say(line + meaning(i));
  }
}

void print_custom_calls(const Artifact& artifact) {
  const jaxexp::wire::Path where{nullptr, "mlir_module_serialized"};
  const auto contents = jaxexp::translating([&] { return jaxexp::wire::read_contents(artifact.module(), where); });
  if (!contents || !contents->custom_calls || contents->custom_calls->empty()) return;
  say(joined("custom calls:", *contents->custom_calls | std::views::keys));
}

void print_weights(const Artifact& artifact) {
  const auto weights = artifact.weights();
  if (!weights) return;
  std::uint64_t bytes = 0;
  for (const auto& tensor : weights->tensors) bytes += tensor.size;
  const std::string line = "weights: the first " + std::to_string(weights->tensors.size()) + " arguments, " +
                           std::to_string(bytes) + " bytes in";
  if (weights->is_in_archive())
    say(line + " the archive");
  else
    say(joined(line, weights->files | std::views::transform(&jaxexp::Weights::File::name)));
}

/// What a value of a VJP is to the function that it belongs to.
std::string meaning_in_vjp(const Artifact& function, const std::vector<Value>& arguments, std::size_t argument) {
  if (argument < arguments.size()) return ", " + arguments[argument].path + " of the function";
  return ", the cotangent of " + function.results().at(argument - arguments.size()).path;
}

/// `primal` is what the artifact is the VJP of; it may be a VJP itself.
void inspect(const Artifact& artifact, const std::optional<Artifact>& primal) {
  say(std::string(artifact.function_name()) + ", for " + std::to_string(artifact.nr_devices()) + " device(s)");
  say(joined("platforms:", artifact.platforms()));
  const auto taken = primal ? primal->arguments() : std::vector<Value>();
  print("arguments", artifact.arguments(),
        [&](std::size_t i) { return primal ? meaning_in_vjp(*primal, taken, i) : ""; });
  print("results", artifact.results(),
        [&](std::size_t i) { return primal ? ", the cotangent of " + taken.at(i).path : ""; });
  print_weights(artifact);
  print_custom_calls(artifact);
  int order = 0;
  for (auto vjp = artifact.vjp(); vjp; vjp = vjp->vjp()) ++order;
  say("VJPs: " + std::to_string(order));
}

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// As in "0.125 ms".
std::string shown(double milliseconds, int digits) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.*f ms", digits, milliseconds);
  return text.data();
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
  say(std::to_string(times) + " calls: median " + shown(took[times / 2], 3) + ", fastest " + shown(took.front(), 3));
}

Artifact artifact_in(std::span<const std::uint8_t> bytes, const Arguments& arguments) {
  try {
    return jaxexp::runtime::artifact_in(bytes, arguments.member, /*is_mapped=*/!arguments.member.empty());
  } catch (const RunError& error) {
    refuse(arguments.artifact + ": " + error.what());
  }
}

void inspect_file(const Arguments& arguments) {
  const auto show = [&](std::span<const std::uint8_t> bytes) {
    reading(arguments, [&] {
      const Artifact artifact = artifact_in(bytes, arguments);
      const std::size_t order = arguments.vjp_order;
      if (order == 0)
        inspect(artifact, std::nullopt);
      else
        inspect(vjp_of(artifact, order), vjp_of(artifact, order - 1));
    });
  };
  if (arguments.member.empty()) return show(jaxexp::runtime::opened(arguments.artifact)->bytes());
  // An archive may have large weights, of which nothing is read.
  const auto archive = reading(arguments, [&] {
    return jaxexp::translating([&] { return jaxexp::wire::MappedFile::named(arguments.artifact); });
  });
  show(archive.bytes());
}

/// Whether a function is compiled only when the sizes of its arguments are known.
bool is_symbolic(const std::vector<jaxexp::Value>& values) {
  const auto is_size = [](std::string_view text) { return text.find_first_not_of("0123456789") == text.npos; };
  return !std::ranges::all_of(values, [&](const auto& value) { return std::ranges::all_of(value.shape, is_size); });
}

void call(const jaxexp::Function& function, const Arguments& arguments) {
  const auto values = function.arguments();
  const std::vector<Array> inputs = jaxexp::command::read_arguments(arguments, values);
  if (arguments.repeat > 0 && !is_symbolic(values)) {
    const auto start = Clock::now();
    function.compile();
    const std::string took = shown(milliseconds_since(start), 1);
    const std::string& place = arguments.executables.empty() ? arguments.compile_cache : arguments.executables;
    const bool is_kept = !place.empty() && function.why_compiled().empty();
    say((is_kept ? "code from " + place : "compiled") + " in " + took);
  }
  const auto [results, first] = timed_call(function, inputs);
  if (const std::string why = function.why_compiled(); !why.empty() && !arguments.executables.empty())
    complain("compiled, because the code in " + arguments.executables + " is not used: " + why);
  const jaxexp::Artifact& artifact = function.artifact();
  if (arguments.out.empty()) {
    const std::string title = std::string(artifact.function_name()) + "  " + name_of(arguments);
    for (const std::string& line : jaxexp::command::shown(title, artifact.results(), results)) say(line);
  } else {
    const std::size_t bytes = jaxexp::command::write_results(arguments.out, results, artifact);
    say(arguments.out + ": " + std::to_string(results.size()) + (results.size() == 1 ? " result, " : " results, ") +
        jaxexp::command::with_commas(bytes) + " bytes");
  }
  if (arguments.repeat > 0) {
    say("first call: " + shown(first, 3));
    repeat(function, inputs, arguments.repeat);
  }
}

int call_or_write_cases(const Arguments& arguments) {
  const jaxexp::Runtime runtime(std::filesystem::path(arguments.plugin), arguments.options);
  if (!arguments.lapack.empty()) jaxexp::Runtime::use_lapack(arguments.lapack);
  const jaxexp::LoadOptions options{.devices = arguments.devices,
                                    .executables = arguments.executables,
                                    .compile_cache = arguments.compile_cache,
                                    .weights = arguments.weights,
                                    .stable = arguments.stable,
                                    .member = arguments.member,
                                    .sizes = arguments.sizes,
                                    .pad = arguments.pad,
                                    .only_sizes = arguments.only_sizes,
                                    .warm_up = false};
  const jaxexp::Function function = reading(arguments, [&] {
    return vjp_of(runtime.load(std::filesystem::path(arguments.artifact), options), arguments.vjp_order);
  });
  if (arguments.cases) {
    const auto written = jaxexp::command::write_cases(runtime, function, arguments);
    if (written.cases == 0)
      refuse(name_of(arguments) + " has no cases: 'jaxexp record' adds calls, with what they return");
    for (const std::string& line : written.failed) complain(line);
    say(arguments.out + ": " + jaxexp::command::counted(written.cases, "case") + ", " +
        jaxexp::command::with_commas(written.bytes) + " bytes");
    return written.failed.empty() ? 0 : failed;
  }
  const bool has_sizes = !arguments.sizes.empty() || !function.artifact().sizes().empty();
  if (arguments.calls())
    call(function, arguments);  // first, as sizes of symbolic dimensions are those of a call
  else if (has_sizes)
    function.compile();
  if (!arguments.save_executable.empty()) function.save_executable(arguments.save_executable);
  return 0;
}

int run(const Arguments& arguments) {
  if (arguments.help)
    std::cout << jaxexp::command::usage;
  else if (arguments.version)
    std::cout << "jaxexp-run " JAXEXP_VERSION << (is_optimized ? "\n" : " (built without optimization)\n");
  else if (arguments.inspect)
    inspect_file(arguments);
  else
    return call_or_write_cases(arguments);
  return 0;
}

}  // namespace

int main(int count, char** texts) {
  try {
    const int status = run(Arguments(count, texts));
    errno = 0;
    if (!std::cout.flush()) throw jaxexp::wire::file_error(errno == 0 ? EIO : errno, "standard output");
    return status;
  } catch (const jaxexp::command::UsageError& error) {
    complain(std::string(error.what()) + ": 'jaxexp-run --help' says what there is");
    return misused;
  } catch (const jaxexp::command::InputError& error) {
    complain(error.what());
    return misused;
  } catch (const std::exception& error) {
    complain(error.what());
    return failed;
  }
}

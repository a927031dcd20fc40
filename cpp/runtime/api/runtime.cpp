// The public view of clients and callables.
#include "jaxexp/runtime.h"

#include <charconv>
#include <limits>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/api/option.h"
#include "runtime/function/bound.h"
#include "wire/base/file_bytes.h"

namespace jaxexp {
namespace {

using Reason = RunError::Reason;

std::vector<std::shared_ptr<const runtime::Numbers>> none(std::size_t size) {
  std::vector<std::shared_ptr<const runtime::Numbers>> numbers;
  numbers.reserve(size);
  return numbers;
}

}  // namespace

Runtime::Options::mapped_type runtime::option_value(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end && !text.empty()) return number;
  return std::string(text);
}

Runtime::Runtime(const std::filesystem::path& plugin, const Options& options)
    : client_(std::make_shared<const runtime::Client>(runtime::Api(plugin), options)) {}

Runtime::Runtime(const PJRT_Api* plugin, const Options& options)
    : client_(std::make_shared<const runtime::Client>(runtime::Api(plugin), options)) {}

std::string_view Runtime::platform() const { return client_->platform(); }
std::string_view Runtime::platform_version() const { return client_->platform_version(); }
std::string Runtime::api_version() const { return client_->api().version(); }
std::size_t Runtime::nr_devices() const { return client_->devices().size(); }

namespace {

std::shared_ptr<const wire::FileBytes> opened(const std::filesystem::path& file, wire::FileBytes::Reading how) {
  try {
    return std::make_shared<const wire::FileBytes>(file, how, std::numeric_limits<std::uint64_t>::max());
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), file.string());
  }
}

/// The file of executables, or null where none was named.
std::shared_ptr<const wire::FileBytes> executables(const LoadOptions& options) {
  return options.executables.empty() ? nullptr : opened(options.executables, wire::FileBytes::Reading::in_parts);
}

}  // namespace

namespace {

/// Where weights are named, they are those; otherwise those that the artifact in `file` names.
std::shared_ptr<const runtime::PlacedWeights> weights_of(const runtime::Callable& callable, const LoadOptions& options,
                                                         const std::filesystem::path& file) {
  const Artifact& artifact = callable.artifact();
  auto weights = options.weights.empty() ? runtime::HostWeights::of(artifact, callable.arguments(), file)
                                         : runtime::HostWeights::named(artifact, callable.arguments(), options.weights);
  return weights ? std::make_shared<const runtime::PlacedWeights>(std::move(weights)) : nullptr;
}

/// Keeps something as long as a callable.
template <class Kept>
std::shared_ptr<const runtime::Callable> with(Kept kept, std::unique_ptr<const runtime::Callable> callable) {
  auto both =
      std::make_shared<std::pair<Kept, std::unique_ptr<const runtime::Callable>>>(std::move(kept), std::move(callable));
  const runtime::Callable* const inner = both->second.get();
  return {std::move(both), inner};
}

}  // namespace

Function Runtime::load(const std::filesystem::path& file, std::vector<std::size_t> devices) const {
  return load(file, LoadOptions{std::move(devices), {}, {}});
}

Function Runtime::load(const std::filesystem::path& file, const LoadOptions& options) const {
  const auto bytes = opened(file, wire::FileBytes::Reading::at_once);
  auto callable =
      std::make_unique<runtime::Callable>(client_, Artifact(bytes->bytes()), options.devices, executables(options));
  auto weights = weights_of(*callable, options, file);
  return Function(std::make_shared<const runtime::Bound>(with(bytes, std::move(callable)), std::move(weights)));
}

Function Runtime::load(Artifact artifact, std::vector<std::size_t> devices) const {
  return load(std::move(artifact), LoadOptions{std::move(devices), {}, {}});
}

Function Runtime::load(Artifact artifact, const LoadOptions& options) const {
  auto callable =
      std::make_shared<const runtime::Callable>(client_, std::move(artifact), options.devices, executables(options));
  auto weights = weights_of(*callable, options, {});
  return Function(std::make_shared<const runtime::Bound>(std::move(callable), std::move(weights)));
}

Array Runtime::put(const Array& array, std::size_t device) const {
  if (device >= nr_devices())
    throw RunError(Reason::argument,
                   "there is no device " + std::to_string(device) + ": the plugin has " + std::to_string(nr_devices()));
  const runtime::Numbers& numbers = *array.numbers_;
  std::shared_ptr<const void> data = numbers.owner;
  const void* from = numbers.data;
  if (!numbers.parts.empty()) {
    auto bytes = std::shared_ptr<std::byte[]>(new std::byte[array.size_bytes()]);
    array.copy_to(bytes.get());
    from = bytes.get();
    data = std::move(bytes);
  }
  const runtime::Buffer::Source source{numbers.type, numbers.shape, from, {}, data};
  auto buffer = runtime::Buffer::from_host(client_, source, client_->devices()[device], nullptr);
  runtime::Numbers result{numbers.type, numbers.shape, nullptr, nullptr, {}};
  result.parts.push_back({runtime::Shape(numbers.shape.size(), 0), numbers.shape, std::move(buffer)});
  return Array(std::make_shared<const runtime::Numbers>(std::move(result)));
}

const Artifact& Function::artifact() const { return bound_->callable()->artifact(); }

std::vector<Value> Function::arguments() const {
  std::vector<Value> arguments = artifact().arguments();
  arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(bound_->nr_weights()));
  return arguments;
}

void Function::compile() const { bound_->callable()->compile(); }

void Function::save_executable(const std::filesystem::path& file) const { bound_->callable()->keep_code(file); }

std::string Function::why_compiled() const { return bound_->callable()->why_compiled(); }

std::vector<Array> Function::called(std::vector<std::shared_ptr<const runtime::Numbers>> numbers) const {
  std::vector<Array> results;
  for (auto& result : bound_->call(std::move(numbers))) results.push_back(Array(std::move(result)));
  return results;
}

std::vector<Array> Function::call(std::span<const Array> arguments) const {
  auto numbers = none(arguments.size());
  for (const Array& argument : arguments) numbers.push_back(argument.numbers_);
  return called(std::move(numbers));
}

std::vector<Array> Function::call(const std::map<std::string, Array>& arguments) const {
  auto numbers = none(arguments.size());
  std::set<std::string_view> unused;
  for (const auto& [path, array] : arguments) unused.insert(path);
  for (const runtime::Parameter& parameter : std::span(bound_->callable()->arguments()).subspan(bound_->nr_weights())) {
    const auto found = arguments.find(parameter.path);
    if (found == arguments.end())
      throw RunError(Reason::argument, "the argument " + parameter.path + ", " + parameter.str() + ", is missing");
    if (unused.erase(parameter.path) == 0)  // a path that was cut
      throw RunError(Reason::argument,
                     "several arguments have the path " + parameter.path + ": give them in their order");
    numbers.push_back(found->second.numbers_);
  }
  if (!unused.empty())
    throw RunError(Reason::argument,
                   std::string(artifact().function_name()) + " has no argument " + std::string(*unused.begin()));
  return called(std::move(numbers));
}

std::optional<Function> Function::vjp() const {
  const auto& callable = bound_->callable();
  auto artifact = callable->artifact().vjp();
  if (!artifact) return std::nullopt;
  auto vjp = std::make_unique<const runtime::Callable>(callable->client(), std::move(*artifact), callable->devices(),
                                                       callable->executables());
  // The memory of the artifact goes after both.
  return Function(std::make_shared<const runtime::Bound>(with(callable, std::move(vjp)), bound_->weights()));
}

std::map<std::string, Array> Function::weights() const {
  std::map<std::string, Array> found;
  const auto& placed = bound_->placed();
  for (std::size_t i = 0; i < placed.size(); ++i) found.emplace(bound_->weights()->host().names()[i], Array(placed[i]));
  return found;
}

Function Function::with_weights(const std::filesystem::path& file) const {
  const auto& callable = bound_->callable();
  auto host = runtime::HostWeights::named(callable->artifact(), callable->arguments(), file);
  return Function(std::make_shared<const runtime::Bound>(
      callable, std::make_shared<const runtime::PlacedWeights>(std::move(host))));
}

Function Function::unbound() const {
  return Function(std::make_shared<const runtime::Bound>(bound_->callable(), nullptr));
}

}  // namespace jaxexp

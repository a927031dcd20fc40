// The public view of clients and callables.
#include "jaxexp/runtime.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "jaxexp/archive.h"
#include "runtime/api/array.h"
#include "runtime/array/dlpack.h"
#include "runtime/function/bound.h"
#include "runtime/lapack/lapack.h"
#include "runtime/plugin/executable.h"
#include "runtime/plugin/handlers.h"
#include "wire/api/translating.h"
#include "wire/base/error.h"
#include "wire/base/text.h"
#include "wire/tensors/mapped_file.h"

namespace jaxexp {
namespace {

using Reason = RunError::Reason;

using Reading = wire::FileBytes::Reading;

std::shared_ptr<const wire::FileBytes> opened_executables(const std::filesystem::path& file, const CheckFile& check) {
  auto found = runtime::opened(file, check ? Reading::at_once : Reading::in_parts);
  if (check) check(file, found->bytes());
  return found;
}

/// A function with the weights that the options name, or else those that the artifact names, in its archive or beside
/// `file`. `owner` keeps the artifact's memory.
std::shared_ptr<const runtime::Bound> bound(const std::shared_ptr<const runtime::Client>& client, Artifact artifact,
                                            const std::shared_ptr<const void>& owner, const LoadOptions& options,
                                            const std::filesystem::path& file) {
  const runtime::CodeSources sources{
      options.executables.empty() ? nullptr : opened_executables(options.executables, options.check_file),
      options.compile_cache.empty() ? nullptr
                                    : runtime::store_in(options.compile_cache, options.compile_cache_bytes, *client)};
  runtime::SizeOptions sizes{artifact.sizes(), options.pad, options.only_sizes, options.warm_up};
  sizes.sizes.insert(sizes.sizes.end(), options.sizes.begin(), options.sizes.end());
  auto callable = std::make_shared<const runtime::Callable>(client, std::move(artifact), owner, options.devices,
                                                            sources, options.compile_options, std::move(sizes));
  const runtime::Opening opening{options.stable, options.check_file};
  auto weights =
      options.weights.empty()
          ? runtime::HostWeights::of(callable->artifact(), callable->arguments(), owner, file, opening)
          : runtime::HostWeights::named(callable->artifact(), callable->arguments(), options.weights, opening);
  auto placed = weights ? std::make_shared<const runtime::PlacedWeights>(std::move(weights)) : nullptr;
  return std::make_shared<const runtime::Bound>(std::move(callable), std::move(placed), /*is_vjp=*/false,
                                                options.stable);
}

constexpr const char* by_option = " by LoadOptions::member, in C by jaxexp_load_options.member";

template <class Read>
bool is_a(std::span<const std::uint8_t> bytes) {
  try {
    static_cast<void>(Read(bytes));
    return true;
  } catch (const DeserializationError&) {
    return false;
  }
}

RunError has_no_members(const std::string& member) {
  return RunError(Reason::argument, "it is an artifact, which has no members: leave out the member '" + member + "'");
}

/// The bytes of an artifact. In a name such as "fleet.zip::resnet/b8", no file may be meant.
std::shared_ptr<const wire::FileBytes> opened_artifact(const std::filesystem::path& file) {
  try {
    return translating(
        [&] { return std::make_shared<const wire::FileBytes>(wire::FileBytes::of_artifact(file, Reading::at_once)); });
  } catch (const std::system_error& error) {
    std::string name = file.string();
    if (name.find("::") != name.npos) name += std::string(" (name a member of an archive") + by_option + ")";
    throw wire::file_error(error.code(), name);
  }
}

}  // namespace

std::shared_ptr<const wire::FileBytes> runtime::opened(const std::filesystem::path& file,
                                                       wire::FileBytes::Reading how) {
  try {
    return std::make_shared<const wire::FileBytes>(file, how, std::numeric_limits<std::uint64_t>::max());
  } catch (const std::system_error& error) {
    throw wire::file_error(error.code(), file);
  }
}

Artifact runtime::artifact_in(std::span<const std::uint8_t> bytes, const std::string& member, bool is_mapped) {
  try {
    if (member.empty()) return Artifact(bytes);
    return is_mapped ? Archive(bytes).copied_artifact(member) : Archive(bytes).artifact(member);
  } catch (const std::out_of_range& error) {
    throw RunError(Reason::argument, error.what());
  } catch (const DeserializationError&) {
    if (member.empty() && is_a<Archive>(bytes))
      throw RunError(Reason::argument, std::string("it is an archive: name a member") + by_option);
    if (!member.empty() && is_a<Artifact>(bytes)) throw has_no_members(member);
    throw;
  }
}

Runtime::Options::mapped_type runtime::option_value(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end && !text.empty()) return number;
  return std::string(text);
}

std::map<std::string, std::int64_t> runtime::sizes_in(std::string_view text) {
  std::map<std::string, std::int64_t> sizes;
  for (std::string_view left = text; !left.empty();) {
    const std::string_view one = left.substr(0, left.find(','));
    left.remove_prefix(std::min(one.size() + 1, left.size()));
    const std::size_t at = one.find('=');
    std::int64_t size = 0;
    const char* const end = one.data() + one.size();
    const auto [rest, error] = std::from_chars(one.data() + std::min(at + 1, one.size()), end, size);
    if (at == one.npos || error != std::errc{} || rest != end || !sizes.emplace(one.substr(0, at), size).second)
      throw RunError(Reason::argument, "sizes are given as in batch=8,seq=128, and not '" + std::string(text) + "'");
  }
  return sizes;
}

Runtime::Runtime(const std::filesystem::path& plugin, const Options& options)
    : client_(std::make_shared<const runtime::Client>(runtime::Api(plugin), options)) {}

Runtime::Runtime(const PJRT_Api* plugin, const Options& options)
    : client_(std::make_shared<const runtime::Client>(runtime::Api(plugin), options)) {}

std::string_view Runtime::platform() const { return client_->platform(); }
std::string_view Runtime::platform_version() const { return client_->platform_version(); }
std::string Runtime::api_version() const { return client_->api().version(); }
std::size_t Runtime::nr_devices() const { return client_->devices().size(); }

Device Runtime::device(std::size_t number) const {
  check_device(number);
  const runtime::Device& found = client_->devices()[number];
  const auto use = client_->memory_use(found);
  Device device{found.id, found.kind, found.description, {}, use.used, use.limit};
  for (const auto& [kind, memory] : found.memories) device.memories.push_back(kind);
  return device;
}

void Runtime::check_device(std::size_t number) const {
  if (number >= nr_devices())
    throw RunError(Reason::argument,
                   "there is no device " + std::to_string(number) + ": the plugin has " + std::to_string(nr_devices()));
}

void Runtime::set_log(std::function<void(const std::string&)> log) const { client_->set_log(std::move(log)); }

Function Runtime::load(const std::filesystem::path& file, const LoadOptions& options) const {
  std::string name = file.string();
  try {
    if (!options.member.empty()) {
      using wire::MappedFile;  // an archive may have more weights than memory has room for
      const auto how = options.stable || options.check_file ? MappedFile::How::read : MappedFile::How::mapped;
      const auto archive = translating([&] { return MappedFile::named(file, how); });
      if (options.check_file) options.check_file(file, archive.bytes());
      const Artifact artifact = runtime::artifact_in(archive.bytes(), options.member, how == MappedFile::How::mapped);
      name += "::" + options.member;
      return Function(bound(client_, artifact, archive.owner(), options, {}));
    }
    const auto bytes = opened_artifact(file);
    if (options.check_file) options.check_file(file, bytes->bytes());
    return Function(bound(client_, runtime::artifact_in(bytes->bytes()), bytes, options, file));
  } catch (const WeightsError&) {  // which names a file of its own
    throw;
  } catch (const DeserializationError& error) {
    throw error.in_file(name);
  } catch (const RunError& error) {
    throw RunError(error.reason(), name + ": " + error.what());
  }
}

Function Runtime::load(Artifact artifact, const LoadOptions& options) const {
  if (!options.member.empty()) throw has_no_members(options.member);
  return Function(bound(client_, std::move(artifact), options.owner, options, options.file));
}

void Runtime::use_lapack(const std::filesystem::path& library) { runtime::lapack::use(library); }

void Runtime::register_ffi(const std::string& target, FfiHandler* handler) const {
  if (target.empty() || !handler) throw RunError(Reason::argument, "a custom call has a name, and a handler");
  const runtime::NamedHandler named{target, handler};
  runtime::give_handlers(client_, {&named, 1});
}

Array Runtime::put(const Array& array, std::size_t device) const {
  check_device(device);
  const runtime::Numbers numbers = array.is_on_device() ? runtime::on_host(*array.numbers_) : *array.numbers_;
  const runtime::Buffer::Source source{numbers.type, numbers.shape, numbers.data, {}, numbers.owner};
  auto buffer = runtime::Buffer::from_host(client_, source, client_->devices()[device], nullptr);
  runtime::Numbers result{numbers.type, numbers.shape, nullptr, nullptr, {}};
  result.parts.push_back({std::nullopt, std::move(buffer)});
  return Array(std::make_shared<const runtime::Numbers>(std::move(result)));
}

Array Runtime::from_dlpack(DLManagedTensorVersioned* tensor) const {
  return Array(std::make_shared<const runtime::Numbers>(runtime::from_dlpack(tensor, client_)));
}

Array Runtime::from_dlpack(DLManagedTensor* tensor) const {
  return Array(std::make_shared<const runtime::Numbers>(runtime::from_dlpack(tensor, client_)));
}

std::intptr_t Runtime::stream(std::int32_t device_type, std::int32_t device_number) const {
  return client_->stream(runtime::device_of(client_.get(), {static_cast<DLDeviceType>(device_type), device_number}));
}

const Artifact& Function::artifact() const { return bound_->callable()->artifact(); }

std::vector<Value> Function::arguments() const {
  std::vector<Value> arguments = artifact().arguments();
  arguments.erase(arguments.begin(), arguments.begin() + static_cast<std::ptrdiff_t>(bound_->nr_weights()));
  for (Value& argument : arguments) argument.path = bound_->as_called(argument.path);
  return arguments;
}

void Function::compile() const { bound_->compile(nullptr); }
void Function::compile(const std::map<std::string, std::int64_t>& sizes) const { bound_->compile(&sizes); }

void Function::save_executable(const std::filesystem::path& file) const { bound_->callable()->keep_code(file); }

std::string Function::why_compiled() const { return bound_->callable()->why_compiled(); }

std::vector<Array> Function::called(std::span<const runtime::Numbers* const> arguments, CallTimes* times) const {
  runtime::Arrays numbers = bound_->call(arguments, times);
  std::vector<Array> results;
  results.reserve(numbers.size());
  for (auto& result : numbers) results.push_back(Array(std::move(result)));
  return results;
}

std::vector<Array> Function::call(std::span<const Array> arguments) const {
  runtime::Few<const runtime::Numbers*, 32> numbers(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) numbers[i] = arguments[i].numbers_.get();
  return called(numbers.all(), nullptr);
}

std::vector<Array> Function::call(std::span<const Array> arguments, CallTimes& times) const {
  std::vector<const runtime::Numbers*> numbers;
  for (const Array& argument : arguments) numbers.push_back(argument.numbers_.get());
  return called(numbers, &times);
}

void Function::call_into(std::span<const Array> arguments, std::span<const std::span<std::byte>> results) const {
  const std::size_t expected = bound_->callable()->nr_results();
  if (results.size() != expected)
    throw RunError(Reason::argument, std::string(artifact().function_name()) + " has " + std::to_string(expected) +
                                         " results, and there is room for " + std::to_string(results.size()));
  const std::vector<Array> found = call(arguments);
  for (std::size_t i = 0; i < found.size(); ++i)
    if (results[i].size() != found[i].size_bytes())
      throw RunError(Reason::argument, "result " + std::to_string(i) + ", " + found[i].str() + ", takes " +
                                           std::to_string(found[i].size_bytes()) + " bytes, and there is room for " +
                                           std::to_string(results[i].size()));
  for (std::size_t i = 0; i < found.size(); ++i) found[i].copy_to(results[i].data());
}

std::vector<Array> Function::call(const std::map<std::string, Array>& arguments) const {
  std::vector<const runtime::Numbers*> numbers;
  std::string missing;
  std::set<std::string_view> unused;
  for (const auto& [path, array] : arguments) unused.insert(path);
  for (const runtime::Parameter& parameter : std::span(bound_->callable()->arguments()).subspan(bound_->nr_weights())) {
    const std::string path = bound_->as_called(parameter.path);
    const auto found = arguments.find(path);
    if (found == arguments.end()) {
      if (missing.empty()) missing = "the argument " + path + ", " + parameter.str() + ", is missing";
      continue;
    }
    if (unused.erase(path) == 0)  // a path that was cut
      throw RunError(Reason::argument, "several arguments have the path " + path + ": give them in their order");
    numbers.push_back(found->second.numbers_.get());
  }
  if (!unused.empty()) {
    const std::vector<Value> known = this->arguments();
    throw RunError(Reason::argument, std::string(artifact().function_name()) + " has no argument " +
                                         std::string(*unused.begin()) + "; it has " +
                                         wire::listed(known.size(), [&](std::size_t i) { return known[i].path; }));
  }
  if (!missing.empty()) throw RunError(Reason::argument, missing);
  return called(numbers, nullptr);
}

std::optional<Function> Function::vjp() const {
  const auto& callable = bound_->callable();
  auto artifact = callable->artifact().vjp();
  if (!artifact) return std::nullopt;
  auto vjp = std::make_shared<const runtime::Callable>(callable->client(), std::move(*artifact), callable,
                                                       callable->devices(), callable->sources(),
                                                       callable->compile_options(), callable->size_options());
  return Function(
      std::make_shared<const runtime::Bound>(std::move(vjp), bound_->weights(), /*is_vjp=*/true, bound_->stable()));
}

std::map<std::string, Array> Function::weights() const {
  std::map<std::string, Array> found;
  const auto& placed = bound_->placed();
  for (std::size_t i = 0; i < placed.size(); ++i) found.emplace(bound_->weights()->host().names()[i], Array(placed[i]));
  return found;
}

Function Function::with_weights(const std::filesystem::path& file, const CheckFile& check_file) const {
  const auto& callable = bound_->callable();
  auto host =
      runtime::HostWeights::named(callable->artifact(), callable->arguments(), file, {bound_->stable(), check_file});
  return Function(std::make_shared<const runtime::Bound>(
      callable, std::make_shared<const runtime::PlacedWeights>(std::move(host)), bound_->is_vjp(), bound_->stable()));
}

Function Function::unbound() const {
  return Function(
      std::make_shared<const runtime::Bound>(bound_->callable(), nullptr, bound_->is_vjp(), bound_->stable()));
}

}  // namespace jaxexp

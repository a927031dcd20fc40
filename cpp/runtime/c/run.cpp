// The interface for C over the one for C++: handles are objects on the heap, exceptions become errors.
#include "jaxexp/run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/api/array.h"

struct jaxexp_runtime {
  jaxexp::Runtime value;
  std::vector<jaxexp::Device> devices;
};

struct jaxexp_function {
  jaxexp::Function value;
  std::string name;
  std::vector<std::string> arguments, results, argument_paths, result_paths, weights;
  mutable std::mutex mutex = {};
  mutable std::set<std::string> why_compiled = {};  // all that was returned: a pointer to it stays
};

struct jaxexp_array {
  jaxexp::Array value;
};

struct jaxexp_error {
  jaxexp_reason reason;
  std::string message;
};

namespace {

using jaxexp::RunError;

void set(jaxexp_error** error, jaxexp_reason reason, const char* message) noexcept {
  if (!error) return;
  *error = new (std::nothrow) jaxexp_error{reason, {}};
  if (!*error) return;
  try {
    (*error)->message = jaxexp::escaped(message);
  } catch (const std::bad_alloc&) {
    // It stays empty.
  }
}

jaxexp_reason reason_of(RunError::Reason reason) {
  switch (reason) {
    case RunError::Reason::argument: return JAXEXP_ARGUMENT;
    case RunError::Reason::unsupported: return JAXEXP_UNSUPPORTED;
    case RunError::Reason::plugin: break;
  }
  return JAXEXP_PLUGIN;
}

/// The pointer that a function returns, or NULL and an error.
template <class Function>
auto guarded(jaxexp_error** error, const Function& function) noexcept -> decltype(function()) {
  try {
    return function();
  } catch (const RunError& e) {
    set(error, reason_of(e.reason()), e.what());
  } catch (const jaxexp::DeserializationError& e) {
    set(error, JAXEXP_DAMAGED, e.what());
  } catch (const std::exception& e) {
    set(error, JAXEXP_SYSTEM, e.what());
  }
  return nullptr;
}

/// 0, or 1 and an error.
template <class Function>
int status(jaxexp_error** error, const Function& function) noexcept {
  const void* done = guarded(error, [&]() -> const void* {
    function();
    return &function;
  });
  return done ? 0 : 1;
}

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

template <class Handle>
const Handle& given(const Handle* handle, const char* what) {
  if (!handle) refuse(std::string(what) + " is NULL");
  return *handle;
}

std::vector<std::string> described(const std::vector<jaxexp::Value>& values) {
  std::vector<std::string> texts;
  for (const jaxexp::Value& value : values) texts.push_back(jaxexp::escaped(value.path) + ": " + value.str());
  return texts;
}

std::vector<std::string> paths_of(const std::vector<jaxexp::Value>& values) {
  std::vector<std::string> paths;
  for (const jaxexp::Value& value : values) paths.push_back(value.path);
  return paths;
}

const char* text_or_null(const std::vector<std::string>& texts, std::size_t index) {
  return index < texts.size() ? texts[index].c_str() : nullptr;
}

jaxexp_function* handle(const jaxexp::Function& function) {
  const jaxexp::Artifact& artifact = function.artifact();
  const auto arguments = function.arguments(), results = artifact.results();
  std::vector<std::string> weights;
  if (arguments.size() < artifact.arguments().size())
    for (const std::string_view name : artifact.names_of_first_argument()) weights.emplace_back(name);
  return new jaxexp_function{function,
                             jaxexp::escaped(artifact.function_name()),
                             described(arguments),
                             described(results),
                             paths_of(arguments),
                             paths_of(results),
                             std::move(weights)};
}

jaxexp_array* handle(jaxexp::Array array) { return new jaxexp_array{std::move(array)}; }

std::vector<std::int64_t> sizes(const std::int64_t* shape, std::size_t rank) {
  if (rank > 0 && !shape) refuse("the shape is NULL");
  return {shape, shape + rank};
}

jaxexp::Options values_of(const jaxexp_option* options, std::size_t count) {
  if (count > 0 && !options) refuse("the options are NULL");
  jaxexp::Options values;
  for (std::size_t i = 0; i < count; ++i)
    values[&given(options[i].name, "the name of an option")] =
        jaxexp::runtime::option_value(&given(options[i].value, "the value of an option"));
  return values;
}

jaxexp::LoadOptions loading(const jaxexp_load_options* options) {
  if (!options) return {};
  if (options->size < offsetof(jaxexp_load_options, weights))
    refuse("the size of the options is not set: expected sizeof(jaxexp_load_options)");
  jaxexp_load_options found{};  // fields that the caller's header did not have are not set
  std::memcpy(&found, options, std::min(options->size, sizeof(found)));
  if (found.device_count > 0 && !found.devices) refuse("the devices are NULL");
  if (found.size_count > 0 && !found.sizes) refuse("the sizes are NULL");
  const auto text = [](const char* field) { return field ? field : ""; };
  std::vector<std::map<std::string, std::int64_t>> sizes;
  for (std::size_t i = 0; i < found.size_count; ++i)
    sizes.push_back(jaxexp::runtime::sizes_in(&given(found.sizes[i], "a set of sizes")));
  jaxexp::LoadOptions defaults;
  return {.devices = {found.devices, found.devices + found.device_count},
          .executables = text(found.executables),
          .compile_cache = text(found.compile_cache),
          .compile_cache_bytes = found.compile_cache_bytes ? found.compile_cache_bytes : defaults.compile_cache_bytes,
          .weights = text(found.weights),
          .stable = found.stable != 0,
          .member = text(found.member),
          .compile_options = values_of(found.compile_options, found.compile_option_count),
          .sizes = std::move(sizes),
          .pad = found.pad != 0,
          .only_sizes = found.only_sizes != 0,
          .warm_up = found.no_warm_up == 0};
}

const jaxexp::Array& argument(const jaxexp_array* const* arguments, std::size_t index) {
  if (!arguments) refuse("the arguments are NULL");
  return given(arguments[index], "an argument").value;
}

std::int64_t memory(const jaxexp_runtime* runtime, std::size_t device,
                    std::optional<std::int64_t> jaxexp::Device::* field) noexcept {
  try {
    return (runtime->value.device(device).*field).value_or(-1);
  } catch (const std::exception&) {
    return -1;
  }
}

std::vector<jaxexp::Array> arguments_of(const jaxexp_array* const* arguments, std::size_t count) {
  std::vector<jaxexp::Array> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i) values.push_back(argument(arguments, i));
  return values;
}

/// Sets all results, or none.
void hand_over(std::vector<jaxexp::Array> arrays, jaxexp_array** results) {
  if (!arrays.empty() && !results) refuse("the room for results is NULL");
  std::vector<std::unique_ptr<jaxexp_array>> handles;
  for (jaxexp::Array& array : arrays) handles.emplace_back(handle(std::move(array)));
  for (std::size_t i = 0; i < handles.size(); ++i) results[i] = handles[i].release();
}

}  // namespace

int jaxexp_run_version(void) { return JAXEXP_RUN_VERSION; }

jaxexp_reason jaxexp_error_reason(const jaxexp_error* error) { return error->reason; }
const char* jaxexp_error_message(const jaxexp_error* error) { return error->message.c_str(); }
void jaxexp_error_free(jaxexp_error* error) { delete error; }

jaxexp_runtime* jaxexp_runtime_new(const char* plugin, const jaxexp_option* options, size_t option_count,
                                   jaxexp_error** error) {
  return guarded(error, [&] {
    jaxexp::Runtime made(std::filesystem::path(&given(plugin, "the plugin")), values_of(options, option_count));
    std::vector<jaxexp::Device> devices;
    for (std::size_t i = 0; i < made.nr_devices(); ++i) devices.push_back(made.device(i));
    return new jaxexp_runtime{std::move(made), std::move(devices)};
  });
}
void jaxexp_runtime_free(jaxexp_runtime* runtime) { delete runtime; }
// This and the dtype are views of whole strings, which end with a zero.
const char* jaxexp_runtime_platform(const jaxexp_runtime* runtime) { return runtime->value.platform().data(); }
size_t jaxexp_runtime_device_count(const jaxexp_runtime* runtime) { return runtime->devices.size(); }

const char* jaxexp_device_kind(const jaxexp_runtime* runtime, size_t device) {
  return device < runtime->devices.size() ? runtime->devices[device].kind.c_str() : nullptr;
}
const char* jaxexp_device_description(const jaxexp_runtime* runtime, size_t device) {
  return device < runtime->devices.size() ? runtime->devices[device].description.c_str() : nullptr;
}
int jaxexp_device_id(const jaxexp_runtime* runtime, size_t device) {
  return device < runtime->devices.size() ? runtime->devices[device].id : -1;
}
int64_t jaxexp_device_memory_used(const jaxexp_runtime* runtime, size_t device) {
  return memory(runtime, device, &jaxexp::Device::memory_used);
}
int64_t jaxexp_device_memory_limit(const jaxexp_runtime* runtime, size_t device) {
  return memory(runtime, device, &jaxexp::Device::memory_limit);
}

int jaxexp_set_log(const jaxexp_runtime* runtime, void (*log)(void* user, const char* line), void* user,
                   jaxexp_error** error) {
  return status(error, [&] {
    std::function<void(const std::string&)> function;
    if (log) function = [=](const std::string& line) { log(user, line.c_str()); };
    given(runtime, "the runtime").value.set_log(std::move(function));
  });
}

jaxexp_function* jaxexp_load(const jaxexp_runtime* runtime, const char* file, const size_t* devices,
                             size_t device_count, jaxexp_error** error) {
  jaxexp_load_options options{};
  options.size = sizeof options;
  options.devices = devices;
  options.device_count = device_count;
  return jaxexp_load_with(runtime, file, &options, error);
}

jaxexp_function* jaxexp_load_with(const jaxexp_runtime* runtime, const char* file, const jaxexp_load_options* options,
                                  jaxexp_error** error) {
  return guarded(error, [&] {
    const std::filesystem::path path(&given(file, "the file"));
    return handle(given(runtime, "the runtime").value.load(path, loading(options)));
  });
}

jaxexp_function* jaxexp_load_bytes(const jaxexp_runtime* runtime, const void* bytes, size_t size,
                                   const jaxexp_load_options* options, jaxexp_error** error) {
  return guarded(error, [&] {
    if (size > 0 && !bytes) refuse("the bytes are NULL");
    const std::span<const std::uint8_t> buffer(static_cast<const std::uint8_t*>(bytes), size);
    jaxexp::LoadOptions found = loading(options);
    const std::string member = std::exchange(found.member, {});
    return handle(given(runtime, "the runtime").value.load(jaxexp::runtime::artifact_in(buffer, member), found));
  });
}

int jaxexp_save_executable(const jaxexp_function* function, const char* file, jaxexp_error** error) {
  return status(error, [&] { given(function, "the function").value.save_executable(&given(file, "the file")); });
}

const char* jaxexp_why_compiled(const jaxexp_function* function) {
  const std::lock_guard lock(function->mutex);
  return function->why_compiled.insert(function->value.why_compiled()).first->c_str();
}

void jaxexp_function_free(jaxexp_function* function) { delete function; }
const char* jaxexp_function_name(const jaxexp_function* function) { return function->name.c_str(); }
size_t jaxexp_argument_count(const jaxexp_function* function) { return function->arguments.size(); }
size_t jaxexp_result_count(const jaxexp_function* function) { return function->results.size(); }
const char* jaxexp_argument(const jaxexp_function* function, size_t index) {
  return text_or_null(function->arguments, index);
}
const char* jaxexp_result(const jaxexp_function* function, size_t index) {
  return text_or_null(function->results, index);
}
const char* jaxexp_argument_path(const jaxexp_function* function, size_t index) {
  return text_or_null(function->argument_paths, index);
}
const char* jaxexp_result_path(const jaxexp_function* function, size_t index) {
  return text_or_null(function->result_paths, index);
}

int jaxexp_compile(const jaxexp_function* function, jaxexp_error** error) {
  return status(error, [&] { given(function, "the function").value.compile(); });
}

int jaxexp_compile_sizes(const jaxexp_function* function, const char* const* variables, const int64_t* sizes,
                         size_t count, jaxexp_error** error) {
  return status(error, [&] {
    if (count > 0 && (!variables || !sizes)) refuse("the variables or their sizes are NULL");
    std::map<std::string, std::int64_t> found;
    for (std::size_t i = 0; i < count; ++i) found[&given(variables[i], "a variable")] = sizes[i];
    given(function, "the function").value.compile(found);
  });
}

jaxexp_function* jaxexp_vjp(const jaxexp_function* function, jaxexp_error** error) {
  return guarded(error, [&]() -> jaxexp_function* {
    auto vjp = given(function, "the function").value.vjp();
    return vjp ? handle(std::move(*vjp)) : nullptr;
  });
}

jaxexp_function* jaxexp_with_weights(const jaxexp_function* function, const char* file, jaxexp_error** error) {
  return guarded(error,
                 [&] { return handle(given(function, "the function").value.with_weights(&given(file, "the file"))); });
}

jaxexp_function* jaxexp_unbound(const jaxexp_function* function, jaxexp_error** error) {
  return guarded(error, [&] { return handle(given(function, "the function").value.unbound()); });
}

size_t jaxexp_weight_count(const jaxexp_function* function) { return function->weights.size(); }
const char* jaxexp_weight_name(const jaxexp_function* function, size_t index) {
  return text_or_null(function->weights, index);
}

jaxexp_array* jaxexp_weight(const jaxexp_function* function, const char* name, jaxexp_error** error) {
  return guarded(error, [&] {
    const std::string wanted(&given(name, "the name"));
    const auto weights = given(function, "the function").value.weights();
    const auto found = weights.find(wanted);
    if (found == weights.end())
      refuse(function->name + " has no weight '" + wanted + "': jaxexp_weight_name() says which it has");
    return handle(found->second);
  });
}

int jaxexp_call(const jaxexp_function* function, const jaxexp_array* const* arguments, size_t argument_count,
                jaxexp_array** results, jaxexp_error** error) {
  return status(error, [&] {
    const auto values = arguments_of(arguments, argument_count);
    hand_over(given(function, "the function").value.call(values), results);
  });
}

int jaxexp_call_timed(const jaxexp_function* function, const jaxexp_array* const* arguments, size_t argument_count,
                      jaxexp_array** results, jaxexp_call_times* times, jaxexp_error** error) {
  return status(error, [&] {
    if (!times) refuse("the times are NULL");
    jaxexp::CallTimes found{};
    const auto values = arguments_of(arguments, argument_count);
    hand_over(given(function, "the function").value.call(values, found), results);
    *times = {found.prepare.count(), found.start.count(), found.wait.count()};
  });
}

int jaxexp_call_into(const jaxexp_function* function, const jaxexp_array* const* arguments, size_t argument_count,
                     void* const* targets, const size_t* sizes, jaxexp_error** error) {
  return status(error, [&] {
    const std::size_t count = given(function, "the function").results.size();
    if (count > 0 && (!targets || !sizes)) refuse("the targets or their sizes are NULL");
    std::vector<std::span<std::byte>> rooms;
    for (std::size_t i = 0; i < count; ++i) {
      if (sizes[i] > 0 && !targets[i]) refuse("a target is NULL");
      rooms.emplace_back(static_cast<std::byte*>(targets[i]), sizes[i]);
    }
    function->value.call_into(arguments_of(arguments, argument_count), rooms);
  });
}

int jaxexp_call_by_path(const jaxexp_function* function, const char* const* paths, const jaxexp_array* const* arguments,
                        size_t argument_count, jaxexp_array** results, jaxexp_error** error) {
  return status(error, [&] {
    if (argument_count > 0 && !paths) refuse("the paths are NULL");
    std::map<std::string, jaxexp::Array> values;
    for (std::size_t i = 0; i < argument_count; ++i)
      if (const std::string path(&given(paths[i], "a path")); !values.emplace(path, argument(arguments, i)).second)
        refuse("the argument " + path + " is given twice");
    hand_over(given(function, "the function").value.call(values), results);
  });
}

jaxexp_array* jaxexp_array_view(const char* dtype, const int64_t* shape, size_t rank, const void* data,
                                jaxexp_error** error) {
  return guarded(error, [&] { return handle(jaxexp::Array(&given(dtype, "the dtype"), sizes(shape, rank), data)); });
}

jaxexp_array* jaxexp_array_copy(const char* dtype, const int64_t* shape, size_t rank, const void* data,
                                jaxexp_error** error) {
  return guarded(error, [&] {
    const jaxexp::Array view(&given(dtype, "the dtype"), sizes(shape, rank), data);
    auto bytes = std::shared_ptr<std::byte[]>(new std::byte[view.size_bytes()]);
    view.copy_to(bytes.get());
    return handle(jaxexp::Array(dtype, view.shape(), std::shared_ptr<const void>(std::move(bytes))));
  });
}

int jaxexp_use_lapack(const char* library, jaxexp_error** error) {
  return status(error, [&] { jaxexp::Runtime::use_lapack(&given(library, "the library")); });
}
int jaxexp_register_ffi(const jaxexp_runtime* runtime, const char* target, jaxexp_ffi_handler handler,
                        jaxexp_error** error) {
  return status(error,
                [&] { given(runtime, "the runtime").value.register_ffi(&given(target, "the target"), handler); });
}

jaxexp_array* jaxexp_put(const jaxexp_runtime* runtime, const jaxexp_array* array, size_t device,
                         jaxexp_error** error) {
  return guarded(
      error, [&] { return handle(given(runtime, "the runtime").value.put(given(array, "the array").value, device)); });
}
void jaxexp_array_free(jaxexp_array* array) { delete array; }
const char* jaxexp_array_dtype(const jaxexp_array* array) { return array->value.dtype().data(); }
size_t jaxexp_array_rank(const jaxexp_array* array) { return array->value.shape().size(); }
const int64_t* jaxexp_array_shape(const jaxexp_array* array) { return array->value.shape().data(); }
size_t jaxexp_array_size_bytes(const jaxexp_array* array) { return array->value.size_bytes(); }

int jaxexp_array_wait(const jaxexp_array* array, jaxexp_error** error) {
  return status(error, [&] { given(array, "the array").value.wait(); });
}

int jaxexp_array_is_ready(const jaxexp_array* array, jaxexp_error** error) {
  bool is_ready = false;
  const int failed = status(error, [&] { is_ready = given(array, "the array").value.is_ready(); });
  return failed ? -1 : is_ready;
}

int jaxexp_array_on_ready(const jaxexp_array* array, void (*done)(void* user, const char* failure), void* user,
                          jaxexp_error** error) {
  return status(error, [&] {
    if (!done) refuse("the callback is NULL");
    given(array, "the array").value.on_ready([=](const RunError* failure) {
      done(user, failure ? failure->what() : nullptr);
    });
  });
}

const void* jaxexp_array_data(const jaxexp_array* array, jaxexp_error** error) {
  return guarded(error, [&] { return given(array, "the array").value.data(); });
}

jaxexp_array* jaxexp_array_from_dlpack(DLManagedTensorVersioned* tensor, jaxexp_error** error) {
  return guarded(error, [&] { return handle(jaxexp::Array::from_dlpack(tensor)); });
}

jaxexp_array* jaxexp_array_from_unversioned_dlpack(DLManagedTensor* tensor, jaxexp_error** error) {
  return guarded(error, [&] { return handle(jaxexp::Array::from_dlpack(tensor)); });
}

jaxexp_array* jaxexp_from_dlpack(const jaxexp_runtime* runtime, DLManagedTensorVersioned* tensor,
                                 jaxexp_error** error) {
  return guarded(error, [&] { return handle(given(runtime, "the runtime").value.from_dlpack(tensor)); });
}

jaxexp_array* jaxexp_from_unversioned_dlpack(const jaxexp_runtime* runtime, DLManagedTensor* tensor,
                                             jaxexp_error** error) {
  return guarded(error, [&] { return handle(given(runtime, "the runtime").value.from_dlpack(tensor)); });
}

int jaxexp_stream(const jaxexp_runtime* runtime, int32_t device_type, int32_t device_number, intptr_t* stream,
                  jaxexp_error** error) {
  return status(error, [&] {
    if (!stream) refuse("the stream is NULL");
    *stream = given(runtime, "the runtime").value.stream(device_type, device_number);
  });
}

DLManagedTensorVersioned* jaxexp_array_to_dlpack(const jaxexp_array* array, jaxexp_error** error) {
  return guarded(error, [&] { return given(array, "the array").value.to_dlpack(); });
}

DLManagedTensor* jaxexp_array_to_unversioned_dlpack(const jaxexp_array* array, jaxexp_error** error) {
  return guarded(error, [&] { return given(array, "the array").value.to_unversioned_dlpack(); });
}

int jaxexp_array_read(const jaxexp_array* array, void* target, size_t size, jaxexp_error** error) {
  return status(error, [&] {
    const jaxexp::Array& value = given(array, "the array").value;
    if (size != value.size_bytes())
      refuse(value.str() + " takes " + std::to_string(value.size_bytes()) + " bytes, and not " + std::to_string(size));
    if (size > 0 && !target) refuse("the target is NULL");
    value.copy_to(target);
  });
}

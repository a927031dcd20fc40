// The interface for C over the one for C++: handles are objects on the heap, exceptions become errors.
#include "jaxexp/run.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/api/given.h"

struct jaxexp_runtime {
  jaxexp::Runtime value;
};

struct jaxexp_function {
  jaxexp::Function value;
  std::string name;
  std::vector<std::string> arguments, results;
  mutable std::mutex mutex = {};
  mutable std::string why_compiled = {};  // which does not change once it is known
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

jaxexp_function* handle(jaxexp::Function function) {
  const jaxexp::Artifact& artifact = function.artifact();
  std::string name = jaxexp::escaped(artifact.function_name());
  auto arguments = described(function.arguments()), results = described(artifact.results());
  return new jaxexp_function{std::move(function), std::move(name), std::move(arguments), std::move(results)};
}

jaxexp_array* handle(jaxexp::Array array) { return new jaxexp_array{std::move(array)}; }

std::vector<std::int64_t> sizes(const std::int64_t* shape, std::size_t rank) {
  if (rank > 0 && !shape) refuse("the shape is NULL");
  return {shape, shape + rank};
}

}  // namespace

int jaxexp_run_version(void) { return JAXEXP_RUN_VERSION; }

jaxexp_reason jaxexp_error_reason(const jaxexp_error* error) { return error->reason; }
const char* jaxexp_error_message(const jaxexp_error* error) { return error->message.c_str(); }
void jaxexp_error_free(jaxexp_error* error) { delete error; }

jaxexp_runtime* jaxexp_runtime_new(const char* plugin, const jaxexp_option* options, size_t option_count,
                                   jaxexp_error** error) {
  return guarded(error, [&] {
    jaxexp::Runtime::Options given_options;
    for (std::size_t i = 0; i < option_count; ++i)
      given_options[&given(options[i].name, "the name of an option")] =
          jaxexp::runtime::option_value(&given(options[i].value, "the value of an option"));
    return new jaxexp_runtime{jaxexp::Runtime(std::filesystem::path(&given(plugin, "the plugin")), given_options)};
  });
}
void jaxexp_runtime_free(jaxexp_runtime* runtime) { delete runtime; }
// This and the dtype are views of whole strings, which end with a zero.
const char* jaxexp_runtime_platform(const jaxexp_runtime* runtime) { return runtime->value.platform().data(); }
size_t jaxexp_runtime_device_count(const jaxexp_runtime* runtime) { return runtime->value.nr_devices(); }

jaxexp_function* jaxexp_load(const jaxexp_runtime* runtime, const char* file, const size_t* devices,
                             size_t device_count, jaxexp_error** error) {
  const jaxexp_load_options options{sizeof options, devices, device_count, nullptr, nullptr, 0};
  return jaxexp_load_with(runtime, file, &options, error);
}

jaxexp_function* jaxexp_load_with(const jaxexp_runtime* runtime, const char* file, const jaxexp_load_options* options,
                                  jaxexp_error** error) {
  return guarded(error, [&] {
    const std::size_t size = given(options, "the options").size;
    if (size < offsetof(jaxexp_load_options, weights)) refuse("the size of the options is not set");
    jaxexp_load_options found{};  // fields that the caller's header did not have are not set
    std::memcpy(&found, options, std::min(size, sizeof(found)));
    if (found.device_count > 0 && !found.devices) refuse("the devices are NULL");
    jaxexp::LoadOptions loading{.devices = {found.devices, found.devices + found.device_count},
                                .stable = found.stable != 0};
    if (found.executables) loading.executables = found.executables;
    if (found.weights) loading.weights = found.weights;
    return handle(given(runtime, "the runtime").value.load(std::filesystem::path(&given(file, "the file")), loading));
  });
}

int jaxexp_save_executable(const jaxexp_function* function, const char* file, jaxexp_error** error) {
  return status(error, [&] { given(function, "the function").value.save_executable(&given(file, "the file")); });
}

const char* jaxexp_why_compiled(const jaxexp_function* function) {
  const std::lock_guard lock(function->mutex);
  if (function->why_compiled.empty()) function->why_compiled = function->value.why_compiled();
  return function->why_compiled.c_str();
}

void jaxexp_function_free(jaxexp_function* function) { delete function; }
const char* jaxexp_function_name(const jaxexp_function* function) { return function->name.c_str(); }
size_t jaxexp_argument_count(const jaxexp_function* function) { return function->arguments.size(); }
size_t jaxexp_result_count(const jaxexp_function* function) { return function->results.size(); }
const char* jaxexp_argument(const jaxexp_function* function, size_t index) {
  return index < function->arguments.size() ? function->arguments[index].c_str() : nullptr;
}
const char* jaxexp_result(const jaxexp_function* function, size_t index) {
  return index < function->results.size() ? function->results[index].c_str() : nullptr;
}

int jaxexp_compile(const jaxexp_function* function, jaxexp_error** error) {
  return status(error, [&] { given(function, "the function").value.compile(); });
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

int jaxexp_call(const jaxexp_function* function, const jaxexp_array* const* arguments, size_t argument_count,
                jaxexp_array** results, jaxexp_error** error) {
  return status(error, [&] {
    if (argument_count > 0 && !arguments) refuse("the arguments are NULL");
    std::vector<jaxexp::Array> values;
    values.reserve(argument_count);
    for (std::size_t i = 0; i < argument_count; ++i) values.push_back(given(arguments[i], "an argument").value);
    auto found = given(function, "the function").value.call(values);
    if (!found.empty() && !results) refuse("the room for results is NULL");
    std::vector<std::unique_ptr<jaxexp_array>> handles;
    for (jaxexp::Array& array : found) handles.emplace_back(handle(std::move(array)));
    for (std::size_t i = 0; i < handles.size(); ++i) results[i] = handles[i].release();
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

int jaxexp_array_read(const jaxexp_array* array, void* target, size_t size, jaxexp_error** error) {
  return status(error, [&] {
    const jaxexp::Array& value = given(array, "the array").value;
    if (size != value.size_bytes())
      refuse(value.str() + " takes " + std::to_string(value.size_bytes()) + " bytes, and not " + std::to_string(size));
    if (size > 0 && !target) refuse("the target is NULL");
    value.copy_to(target);
  });
}

// An extension of the C API takes them: https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_ffi_extension.h.
#include "runtime/plugin/handlers.h"

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/plugin/compile_options.h"
#include "runtime/plugin/executable.h"
#include "wire/base/error.h"
#include "wire/base/text.h"

namespace jaxexp::runtime {
namespace {

using Reason = RunError::Reason;

/// Plugins of other versions, whose struct has other members, say that its size does not fit.
struct PJRT_FFI_Register_Handler_Args {
  std::size_t struct_size;
  const char* target_name;
  std::size_t target_name_size;
  Handler* handler;
  const char* platform_name;
  std::size_t platform_name_size;
  int traits;
};
constexpr std::size_t PJRT_FFI_Register_Handler_Args_STRUCT_SIZE =
    offsetof(PJRT_FFI_Register_Handler_Args, traits) + sizeof(int);

struct Extension {
  PJRT_Extension_Base base;
  void *type_register, *user_data_add;
  PJRT_Error* (*register_handler)(PJRT_FFI_Register_Handler_Args*);
};

const Extension* extension(const Client& client) {
  const auto* const found = client.api().extension(PJRT_Extension_Type_FFI);
  return found && found->struct_size >= sizeof(Extension) ? reinterpret_cast<const Extension*>(found) : nullptr;
}

using Given = std::map<std::string, Handler*, std::less<>>;
std::mutex mutex;

/// What a plugin was given, while the mutex is locked.
Given& given(const Client& client) {
  static auto& all = *new std::map<const PJRT_Api*, Given>;
  return all[client.api().table()];
}

void give(const Client& client, const NamedHandler& named) {
  auto arguments =
      JAXEXP_PJRT_STRUCT(PJRT_FFI_Register_Handler_Args, .target_name = named.target.data(),
                         .target_name_size = named.target.size(), .handler = named.handler,
                         .platform_name = client.platform().data(), .platform_name_size = client.platform().size());
  client.api().check(extension(client)->register_handler(&arguments), "take a handler of a custom call");
}

/// As MLIR writes a name that may have any characters.
std::string symbol(std::string_view name) {
  std::string text = "@\"";
  for (const char c : name) {
    const auto byte = static_cast<std::uint8_t>(c);
    (text += '\\') += wire::hexadecimal({&byte, 1});
  }
  return text += '"';
}

/// Compiles a module that calls targets. Throws PluginError where that fails.
void compile_calls(const std::shared_ptr<const Client>& client, std::span<const std::string> targets) {
  std::string calls, types, values;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const std::string value = "%r" + std::to_string(i);
    calls +=
        value + " = stablehlo.custom_call " + symbol(targets[i]) + "() {api_version = 4 : i32} : () -> tensor<f32> ";
    types += i > 0 ? ", tensor<f32>" : "tensor<f32>";
    values += (i > 0 ? ", " : "") + value;
  }
  const std::string module =
      "func.func public @main() -> (" + types + ") { " + calls + "return " + values + " : " + types + " }";
  const std::array devices{client->devices().front().id};
  Executable(client, {reinterpret_cast<const std::uint8_t*>(module.data()), module.size()},
             compile_options(devices, /*uses_shardy=*/false, {}));
}

}  // namespace

bool takes_handlers(const Client& client) { return extension(client) != nullptr && !client.devices().empty(); }

bool has_given_handler(const Client& client, std::string_view target) {
  static_cast<void>(PluginCall());  // after a fork, the mutex may stay locked
  const std::lock_guard lock(mutex);
  return given(client).contains(target);
}

void give_handlers(const std::shared_ptr<const Client>& client, std::span<const NamedHandler> handlers) {
  const PluginCall call;
  if (!takes_handlers(*client))
    throw RunError(Reason::unsupported, "the plugin takes no handlers of custom calls: its version " +
                                            client->api().version() +
                                            " of the PJRT C API has no extension for them; take a newer plugin");
  const std::lock_guard lock(mutex);
  Given& known = given(*client);
  std::vector<NamedHandler> added;
  for (const NamedHandler& one : handlers) {
    const auto found = known.find(one.target);
    if (found == known.end())
      added.push_back(one);
    else if (found->second != one.handler)
      throw RunError(Reason::argument,
                     "the custom call " + wire::shortened(one.target) + " has another handler already");
  }
  if (added.empty()) return;
  // What a plugin has taken it never forgets, so each handler is tried under a name of its own: the target stays free
  // for another one.
  std::vector<std::string> tried;
  for (const auto& [target, handler] : added) {
    tried.push_back(std::string(target) + " at " + std::to_string(reinterpret_cast<std::uintptr_t>(handler)));
    give(*client, {tried.back(), handler});
  }
  try {
    compile_calls(client, tried);
  } catch (const PluginError& error) {
    throw RunError(Reason::unsupported,
                   "the plugin took the handler of a custom call, and does not find it: it may be built for a newer "
                   "version of XLA's FFI than the plugin (" +
                       wire::shortened(error.words, 300) +
                       "); build it with the headers of a jaxlib that is not newer than the plugin");
  }
  for (const NamedHandler& one : added) {
    give(*client, one);
    known.emplace(one.target, one.handler);
  }
}

}  // namespace jaxexp::runtime

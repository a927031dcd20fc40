// The function table of a PJRT plugin, and calls of it whose failures are exceptions.
#pragma once

#include <pjrt_c_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {

/// Notices forks from now on. A plugin is about to start.
void watch_forks();

/// Notices exit() before it destroys what a plugin has made by now. Plugins make static objects when they start, when
/// they compile, and when they first run what they compiled (kernels of libraries): call this after each of them.
void watch_exit() noexcept;

/// While a plugin is called, or computes what a call began: exit() waits for the last copy. Throws RunError in a
/// process that was forked after a plugin had started. Other threads than the one that exits are held here while it
/// does, unless they are in a call already.
class PluginCall {
 public:
  PluginCall() : counted_(of_this_thread_ == 0 ? begin() : nullptr), is_copy_(false) { ++of_this_thread_; }
  PluginCall(const PluginCall& begun) noexcept;
  PluginCall& operator=(const PluginCall&) = delete;
  ~PluginCall() {
    if (!is_copy_) --of_this_thread_;
    if (counted_) --*counted_;
  }

 private:
  static std::atomic<int>* begin();

  inline static thread_local int of_this_thread_ = 0;
  std::atomic<int>* counted_;  // null: a call in a call
  bool is_copy_;
};

/// Whether a plugin must not be called any more.
bool plugins_are_gone() noexcept;

/// A struct of the C API with these fields, zeros in the others, and its size: plugins that are older read less of it.
#define JAXEXP_PJRT_STRUCT(Type, ...) \
  Type { .struct_size = Type##_STRUCT_SIZE __VA_OPT__(, ) __VA_ARGS__ }

/// Calls a function of an Api with these arguments, and returns them with those that the plugin set.
#define JAXEXP_PJRT_CALL(api, Function, task, ...) \
  (api).call(&PJRT_Api::Function, JAXEXP_PJRT_STRUCT(Function##_Args, __VA_ARGS__), task)

struct PluginError : RunError {
  PluginError(std::string_view task, std::string words)
      : RunError(Reason::plugin, "the plugin cannot " + std::string(task) + ": " + words), words(std::move(words)) {}
  std::string words;  // as the plugin said them
};

/// A plugin. It is never unloaded: its threads, and destructors of its static objects, would run on without code.
class Api {
 public:
  /// Loads a shared library that has the function GetPjrtApi. Throws RunError.
  explicit Api(const std::filesystem::path& library);
  /// Takes the table of a plugin that is linked into the program. Throws RunError.
  explicit Api(const PJRT_Api* table);

  /// Calls a function of the table. `task` is for messages, as in "compile". Throws RunError where the plugin fails, or
  /// is too old to have the function.
  template <class Function, class Arguments>
  Arguments call(Function* PJRT_Api::* function, Arguments arguments, std::string_view task) const {
    if (!has(function)) refuse(task);
    const PluginCall call;
    PJRT_Error* error = nullptr;
    try {
      error = (table_->*function)(&arguments);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& thrown) {  // which the C API does not know, and XLA does
      throw PluginError(task, thrown.what());
    }
    check(error, task);
    return arguments;
  }

  /// The same where nothing can be done about a failure: in destructors.
  template <class Function, class Arguments>
  void call_silently(Function* PJRT_Api::* function, Arguments arguments) const noexcept {
    if (!has(function) || plugins_are_gone()) return;
    if (PJRT_Error* const error = (table_->*function)(&arguments)) destroy(error);
  }

  /// Whether the plugin's table is long enough for this function, and has it.
  template <class Function>
  bool has(Function* PJRT_Api::* function) const noexcept {
    const auto* const entry = reinterpret_cast<const std::byte*>(&(table_->*function));
    const std::size_t offset = static_cast<std::size_t>(entry - reinterpret_cast<const std::byte*>(table_));
    return offset + sizeof(Function*) <= table_->struct_size && table_->*function != nullptr;
  }

  /// Waits for an event, and destroys it. Throws RunError where what it stands for failed.
  void wait(PJRT_Event* event, std::string_view task) const;

  bool is_ready(PJRT_Event* event) const;

  /// Runs `done` when an event comes, in this thread or in one of the plugin's, and destroys the event. `done` gets the
  /// error that `wait` would throw, or null, and must not throw. No event at all has come already.
  void when_ready(PJRT_Event* event, std::string_view task, std::function<void(const RunError*)> done) const;

  /// What the plugin returned, which is in its library.
  const PJRT_Api* table() const { return table_; }

  /// What the plugin offers beyond its table; null where it does not. Extensions have a struct each, whose first
  /// members are those of PJRT_Extension_Base.
  const PJRT_Extension_Base* extension(PJRT_Extension_Type type) const;

  /// Throws PluginError where a function of an extension returned an error.
  void check(PJRT_Error* error, std::string_view task) const;

  /// As in "0.81".
  std::string version() const;

  /// The variables of the environment that plugins read once. Where they have other values now, both, because a plugin
  /// may have read either.
  std::vector<std::pair<std::string, std::string>> settings() const;

  /// A list of numbers that the plugin says of itself, such as "stablehlo_current_version"; empty where it does not.
  std::vector<std::int64_t> attribute(std::string_view name) const;

 private:
  void initialize();
  std::string taken_words(PJRT_Error* error) const;
  void destroy(PJRT_Error* error) const noexcept;
  [[noreturn]] void refuse(std::string_view task) const;

  const PJRT_Api* table_;
};

struct Destroy {
#define JAXEXP_PJRT_DESTROY(Type, field)                                                                \
  void operator()(Type* it) const noexcept {                                                            \
    api.call_silently(&PJRT_Api::Type##_Destroy, JAXEXP_PJRT_STRUCT(Type##_Destroy_Args, .field = it)); \
  }
  JAXEXP_PJRT_DESTROY(PJRT_Buffer, buffer)
  JAXEXP_PJRT_DESTROY(PJRT_Client, client)
  JAXEXP_PJRT_DESTROY(PJRT_Event, event)
  JAXEXP_PJRT_DESTROY(PJRT_Executable, executable)
  JAXEXP_PJRT_DESTROY(PJRT_LoadedExecutable, executable)
#undef JAXEXP_PJRT_DESTROY
  Api api;
};

/// What a plugin made and the holder destroys.
template <class Type>
using Owned = std::unique_ptr<Type, Destroy>;

}  // namespace jaxexp::runtime

// The function table of a PJRT plugin, and calls of it whose failures are exceptions.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {

/// Arguments of a function of the C API, empty but for their size. Plugins that are older read less of them.
#define JAXEXP_PJRT_ARGUMENTS(Type, name) \
  Type name{};                            \
  name.struct_size = Type##_STRUCT_SIZE

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
  void call(Function* PJRT_Api::* function, Arguments& arguments, std::string_view task) const {
    if (!has(function)) refuse(task);
    check((table_->*function)(&arguments), task);
  }

  /// The same where nothing can be done about a failure, as in destructors.
  template <class Function, class Arguments>
  void call_silently(Function* PJRT_Api::* function, Arguments& arguments) const noexcept {
    if (!has(function)) return;
    if constexpr (std::is_void_v<decltype((table_->*function)(&arguments))>)
      (table_->*function)(&arguments);
    else if (PJRT_Error* const error = (table_->*function)(&arguments))
      destroy(error);
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

  /// Runs `done` when an event comes, in this thread or in one of the plugin's, and destroys the event. `done` must not
  /// throw. No event at all has come already.
  void when_ready(PJRT_Event* event, std::function<void()> done) const;

  /// What the plugin returned, which is in its library.
  const PJRT_Api* table() const { return table_; }

  /// As in "0.81".
  std::string version() const;

  /// A list of numbers that the plugin says of itself, such as "stablehlo_current_version"; empty where it does not.
  std::vector<std::int64_t> attribute(std::string_view name) const;

 private:
  struct DestroyEvent {
    void operator()(PJRT_Event* event) const noexcept;
    const Api* api = nullptr;
  };
  using Event = std::unique_ptr<PJRT_Event, DestroyEvent>;

  Event owned(PJRT_Event* event) const;
  void initialize();
  void check(PJRT_Error* error, std::string_view task) const;
  void destroy(PJRT_Error* error) const noexcept;
  [[noreturn]] void refuse(std::string_view task) const;

  const PJRT_Api* table_;
};

}  // namespace jaxexp::runtime

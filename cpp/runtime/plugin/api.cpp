// Plugins are shared libraries of which one symbol is known: https://openxla.org/xla/pjrt/pjrt_integration
#include "runtime/plugin/api.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <span>
#include <thread>

#include "runtime/plugin/flags.h"
#include "runtime/plugin/shared_library.h"

#ifndef _WIN32
#include <pthread.h>
#endif

namespace jaxexp::runtime {

// exit() destroys the plugin's static objects, in whatever other threads do: so it first waits for their calls. Nothing
// here is destroyed.

namespace {

enum class State { running, forked, exiting };

std::atomic<State> state = State::running;

/// Calls under way, in counters of their own: threads that share one wait for each other.
struct alignas(64) Counter {
  std::atomic<int> calls = 0;
};
std::array<Counter, 32> counters;

std::atomic<int>& counter_of_this_thread() {
  static std::atomic<std::size_t> threads = 0;
  thread_local Counter& counter = counters[threads++ % counters.size()];
  return counter.calls;
}

bool is_calling() {
  return std::ranges::any_of(counters, [](const Counter& counter) { return counter.calls > 0; });
}
std::atomic<std::thread::id> exit_thread;  // once the state is `exiting`

constexpr std::chrono::seconds longest_exit{60};  // a call that takes longer is given up
constexpr std::chrono::milliseconds step{1};

[[maybe_unused]] void exits() {
  if (state != State::running) return;  // forked, or this was called before, and waits once
  exit_thread = std::this_thread::get_id();
  state = State::exiting;
  const auto end = std::chrono::steady_clock::now() + longest_exit;
  while (is_calling() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(step);
}

[[maybe_unused]] void is_forked() {
  state = State::forked;
  for (Counter& counter : counters) counter.calls = 0;  // those of other threads, which are not in this process
}

[[noreturn]] void refuse() {
  if (state == State::forked)
    throw RunError(RunError::Reason::argument,
                   "a plugin was started before this process was forked, and its threads are in the parent only: fork "
                   "before the first Runtime is made, or start a new program");
  // What is thrown here would end threads that nobody stopped. Somebody may wait for this one, though.
  if (exit_thread.load() != std::this_thread::get_id()) std::this_thread::sleep_for(longest_exit);
  throw RunError(RunError::Reason::argument, "the plugin cannot be used any more: the process exits");
}

}  // namespace

void watch_forks() {
#ifndef _WIN32
  static const int failed = pthread_atfork(nullptr, nullptr, is_forked);
  if (failed != 0) throw std::bad_alloc();
#endif
}

void watch_exit() noexcept {
#ifndef _WIN32
  static_cast<void>(std::atexit(exits));  // what is registered last is called first
#endif
}

std::atomic<int>* PluginCall::begin() {
  std::atomic<int>& calls = counter_of_this_thread();
  ++calls;
  if (state == State::running) return &calls;
  --calls;
  refuse();
}

// In the counter of what it copies: exit() looks at one after the other.
PluginCall::PluginCall(const PluginCall& begun) noexcept
    : counted_(begun.counted_ ? begun.counted_ : &counter_of_this_thread()), is_copy_(true) {
  ++*counted_;
}

bool plugins_are_gone() noexcept { return state != State::running; }

namespace {

constexpr const char* entry_point = "GetPjrtApi";
using EntryPoint = const PJRT_Api*();

const PJRT_Api* table_of(const std::filesystem::path& library) {
  std::string why;
  const auto loaded = SharedLibrary::open(library, why);
  if (!loaded)
    throw RunError(RunError::Reason::argument, "the plugin " + library.string() + " cannot be loaded: " + why);
  auto* const entry = reinterpret_cast<EntryPoint*>(loaded->find(entry_point));
  if (!entry)
    throw RunError(RunError::Reason::argument,
                   library.string() + " is not a PJRT plugin: it has no function " + entry_point);
  const PJRT_Api* const table = entry();
  if (!table) throw RunError(RunError::Reason::plugin, library.string() + ": " + entry_point + " returned nothing");
  return table;
}

using Settings = std::vector<std::pair<std::string, std::string>>;

Settings settings_now() { return {{"XLA_FLAGS", xla_flags()}, {"LIBTPU_INIT_ARGS", libtpu_flags()}}; }

/// A plugin is initialized once in a process, however many runtimes use it.
struct Initialized {
  std::mutex mutex;
  std::map<const PJRT_Api*, Settings> settings;
};

Initialized& initialized() {
  static Initialized plugins;
  return plugins;
}

}  // namespace

Api::Api(const std::filesystem::path& library) : Api(table_of(library)) {}

Api::Api(const PJRT_Api* table) : table_(table) {
  if (!table_) throw RunError(RunError::Reason::argument, "the table of the plugin is null");
  constexpr std::size_t least = offsetof(PJRT_Api, pjrt_api_version) + sizeof(PJRT_Api_Version);
  if (table_->struct_size < least || table_->pjrt_api_version.major_version != PJRT_API_MAJOR)
    throw RunError(RunError::Reason::unsupported,
                   "the plugin has version " + (table_->struct_size < least ? std::string("0") : version()) +
                       " of the PJRT C API, which is not compatible with " + std::to_string(PJRT_API_MAJOR) + "." +
                       std::to_string(PJRT_API_MINOR));
  initialize();
}

void Api::initialize() {
  const PluginCall call;  // a mutex that another thread had when it forked stays locked
  Initialized& plugins = initialized();
  const std::lock_guard lock(plugins.mutex);
  if (plugins.settings.contains(table_)) return;
  watch_forks();
  const Settings settings = settings_now();
  JAXEXP_PJRT_CALL(*this, PJRT_Plugin_Initialize, "initialize itself");
  plugins.settings.emplace(table_, settings);
  watch_exit();
}

Settings Api::settings() const {
  Initialized& plugins = initialized();
  Settings settings = settings_now();
  const std::lock_guard lock(plugins.mutex);
  const Settings& before = plugins.settings.at(table_);
  for (std::size_t i = 0; i < settings.size(); ++i)
    if (settings[i].second != before[i].second)
      settings[i].second = before[i].second + " when it started, then " + settings[i].second;
  return settings;
}

void Api::check(PJRT_Error* error, std::string_view task) const {
  if (error) throw PluginError(task, taken_words(error));
}

std::string Api::taken_words(PJRT_Error* error) const {
  auto message = JAXEXP_PJRT_STRUCT(PJRT_Error_Message_Args, .error = error);
  table_->PJRT_Error_Message(&message);
  std::string words(message.message, message.message_size);
  destroy(error);
  return words;
}

void Api::destroy(PJRT_Error* error) const noexcept {
  auto arguments = JAXEXP_PJRT_STRUCT(PJRT_Error_Destroy_Args, .error = error);
  table_->PJRT_Error_Destroy(&arguments);
}

void Api::refuse(std::string_view task) const {
  throw RunError(RunError::Reason::unsupported, "the plugin cannot " + std::string(task) + ": its version " +
                                                    version() +
                                                    " of the PJRT C API has no function for it; take a newer plugin");
}

void Api::wait(PJRT_Event* event, std::string_view task) const {
  if (!event) return;
  const Owned<PJRT_Event> owner(event, {*this});
  JAXEXP_PJRT_CALL(*this, PJRT_Event_Await, task, .event = event);
}

bool Api::is_ready(PJRT_Event* event) const {
  return JAXEXP_PJRT_CALL(*this, PJRT_Event_IsReady, "say whether an event has come", .event = event).is_ready;
}

void Api::when_ready(PJRT_Event* event, std::string_view task, std::function<void(const RunError*)> done) const {
  if (!event) return done(nullptr);
  Owned<PJRT_Event> owner(event, {*this});
  struct Callback {
    std::string_view task;
    std::function<void(const RunError*)> done;
    Owned<PJRT_Event> event;
  };
  auto callback = std::make_unique<Callback>(Callback{task, std::move(done), std::move(owner)});
  // The event goes when it has come: nobody promises that a plugin calls back for an event that is gone.
  const PJRT_Event_OnReadyCallback call_back = [](PJRT_Error* error, void* user) {
    const std::unique_ptr<Callback> mine(static_cast<Callback*>(user));
    if (!error) return mine->done(nullptr);
    const PluginError found(mine->task, mine->event.get_deleter().api.taken_words(error));
    mine->done(&found);
  };
  JAXEXP_PJRT_CALL(*this, PJRT_Event_OnReady, "say when an event comes", .event = event, .callback = call_back,
                   .user_arg = callback.get());
  static_cast<void>(callback.release());  // the plugin has it, or has called and deleted it already
}

const PJRT_Extension_Base* Api::extension(PJRT_Extension_Type type) const {
  const auto* found = table_->extension_start;
  while (found && found->type != type) found = found->next;
  return found;
}

std::string Api::version() const {
  const PJRT_Api_Version& v = table_->pjrt_api_version;
  return std::to_string(v.major_version) + "." + std::to_string(v.minor_version);
}

std::vector<std::int64_t> Api::attribute(std::string_view name) const {
  if (!has(&PJRT_Api::PJRT_Plugin_Attributes)) return {};
  const auto described = JAXEXP_PJRT_CALL(*this, PJRT_Plugin_Attributes, "describe itself");
  for (const PJRT_NamedValue& value : std::span(described.attributes, described.num_attributes)) {
    if (std::string_view(value.name, value.name_size) == name && value.type == PJRT_NamedValue_kInt64List)
      return {value.int64_array_value, value.int64_array_value + value.value_size};
  }
  return {};
}

}  // namespace jaxexp::runtime

// exit() destroys the plugin's static objects, in whatever other threads do: so it first waits for their calls. Nothing
// here is destroyed.
#include "runtime/plugin/process.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <thread>

#include "jaxexp/run_error.h"

#ifndef _WIN32
#include <pthread.h>
#endif

namespace jaxexp::runtime {
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

}  // namespace jaxexp::runtime

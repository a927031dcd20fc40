// Work that does not need Python's lock.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace jaxexp::bindings {

/// Waits for the end of the process.
///
/// Before 3.14, Python ends a thread that asks for its lock while the interpreter ends, and unwinds the thread's stack.
/// Functions that catch everything must not end then, so such a thread waits in them, as it does since 3.14.
[[noreturn]] inline void wait_for_end() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Releases Python's lock, which other threads take meanwhile.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      wait_for_end();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace jaxexp::bindings

// What plugins must not be asked: their threads are not in a forked process, and what they need is gone while the
// process exits.
#pragma once

#include <atomic>

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

}  // namespace jaxexp::runtime

// What was made for each set of sizes of a function's dimension variables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/signature/dimensions.h"

namespace jaxexp::runtime {

/// May be used by several threads at once. Keeps what was used last.
template <class Made, std::size_t most = 64>
class BySizes {
 public:
  using Shared = std::shared_ptr<const Made>;

  /// Calls `make` where nothing was made for these sizes: once, and other threads that want the same wait for it.
  template <class Make>
  Shared get(const Variables& sizes, Make make) {
    const std::shared_ptr<Entry> entry = entry_of(sizes);
    const std::lock_guard making(entry->mutex);
    if (!entry->made) {
      auto made = std::make_shared<const Made>(make());
      const std::lock_guard lock(mutex_);
      entry->made = std::move(made);
    }
    return entry->made;
  }

  /// All that is there, what was used last first.
  std::vector<std::pair<Variables, Shared>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<Variables, Shared>> found;
    for (const auto& entry : entries_)
      if (entry->made) found.emplace_back(entry->sizes, entry->made);
    return found;
  }

 private:
  struct Entry {
    Variables sizes;
    std::mutex mutex = {};
    Shared made = {};  // set while both mutexes are locked
  };

  std::shared_ptr<Entry> entry_of(const Variables& sizes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return entry->sizes == sizes; });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
    } else {
      entries_.push_front(std::make_shared<Entry>(sizes));
      if (entries_.size() > most) entries_.pop_back();
    }
    return entries_.front();
  }

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // those that were used last in front
};

}  // namespace jaxexp::runtime

// Which sizes of its dimension variables a function is compiled for, where calls have others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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

/// As LoadOptions has them in jaxexp/runtime.h.
struct SizeOptions {
  std::vector<std::map<std::string, std::int64_t>> sizes = {};
  bool pad = false, only = false, warm_up = true;
};

/// As in "batch, seq", or "no dimension variable".
std::string listed(const std::set<std::string_view>& variables);
/// As in "a size of at least 1 for each of batch, seq".
std::string wanted_sizes(const std::set<std::string_view>& variables);

/// The variables that have these sizes, each with its name in `names`; nothing where others are named, or a size is not
/// at least 1.
std::optional<Variables> variables_of(const std::map<std::string, std::int64_t>& sizes,
                                      const std::set<std::string_view>& names);

/// May be used by several threads at once.
class SizeChoice {
 public:
  /// Says why a call with the first sizes cannot be padded to the others; nothing where it can.
  using WhyNot = std::function<std::optional<std::string>(const Variables& given, const Variables& padded)>;

  /// `name` is the function's, for errors. Throws RunError where sizes are not those of all variables.
  SizeChoice(std::string name, const std::set<std::string_view>& variables, const SizeOptions& options);

  /// The sizes that were listed, each set once, the smallest in front.
  const std::vector<Variables>& listed() const { return listed_; }
  /// Whether a function may be compiled for other sizes than those of a call, or for listed ones only.
  bool is_free() const { return !pads_ && !only_; }

  struct Chosen {
    Variables sizes;
    std::string why_not_padded;  // empty where nobody asked
  };
  /// What a call with the sizes `given` runs. Asks `why_not` once for each set of sizes. Throws RunError where nothing
  /// that is listed fits, and nothing else may be used.
  std::shared_ptr<const Chosen> chosen(const Variables& given, const WhyNot& why_not) const;

 private:
  Chosen choose(const Variables& given, const WhyNot& why_not) const;

  std::string name_;
  bool pads_, only_;
  std::vector<Variables> listed_;
  mutable BySizes<Chosen, 1024> known_;
};

}  // namespace jaxexp::runtime

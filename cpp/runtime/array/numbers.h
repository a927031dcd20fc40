// What an Array stands for: numbers in host memory, or parts of them in the memories of devices.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plugin/buffer.h"

namespace jaxexp::runtime {

using Shape = std::vector<std::int64_t>;

struct Block {
  Shape start;  // of its first number
  Shape shape;

  bool operator==(const Block&) const = default;
};

struct Part {
  std::optional<Block> block;  // nothing: all of the array
  std::shared_ptr<const Buffer> buffer;
};

struct Numbers;

/// What is done with numbers where they are. A copy begins anew.
class Uses {
 public:
  Uses() = default;
  Uses(const Uses&) noexcept {}
  Uses& operator=(const Uses&) = delete;

  /// From now on, no call donates the numbers. Those that may do so are over.
  void pin() const;
  void unpin() const { --pins_; }

  /// Whether a call may donate the numbers: not while they are pinned. If it may, `end_call` has to follow.
  bool begin_call() const {
    may_be_gone_ = true;
    ++calls_;
    if (pins_ == 0) return true;
    --calls_;  // whoever pins waits only for calls that began before
    return false;
  }
  void end_call() const { --calls_; }
  /// Whether a call may have donated them.
  bool may_be_gone() const { return may_be_gone_; }

 private:
  mutable std::atomic<int> pins_ = 0, calls_ = 0;
  mutable std::atomic<bool> may_be_gone_ = false;
};

/// Numbers of devices in host memory, where they stay as long as this does. A copy begins anew.
class HostView {
 public:
  HostView() = default;
  HostView(const HostView&) noexcept {}
  HostView& operator=(const HostView&) = delete;

  /// The first of `numbers`, which has this view. Waits for them. Throws RunError.
  const void* data_of(const Numbers& numbers) const;

 private:
  mutable std::atomic<const void*> data_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const void> copy_;
};

struct Numbers {
  const ElementType* type;
  Shape shape;
  /// Row-major without gaps; null where the numbers are on devices. Without an owner it is the caller's.
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
  /// One for each device; devices may have the same part.
  std::vector<Part> parts;
  /// Whether others need the parts, too, such as other calls: the call that gets them may not donate them.
  bool is_lent = false;
  /// Whether the first part is all of the array, in host memory; nothing: not known.
  std::optional<bool> is_on_host = {};
  Uses uses = {};
  HostView host_view = {};
};

class Pin {
 public:
  explicit Pin(const Numbers& numbers) : numbers_(numbers) { numbers_.uses.pin(); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() { numbers_.uses.unpin(); }

 private:
  const Numbers& numbers_;
};

using Arrays = std::vector<std::shared_ptr<const Numbers>>;
/// Arguments, which their owner keeps.
using Arguments = std::span<const Numbers* const>;

/// How many numbers there are; throws RunError where that, times `bytes`, is more than memory can be.
std::size_t count(const Shape& shape, std::size_t bytes = 1);

std::size_t size_bytes(const Numbers& numbers);

Shape row_major_strides(const Shape& shape, std::size_t bytes);

/// As in "float32[2,3]".
std::string description(const Numbers& numbers);
std::string description(const Shape& shape);

/// Calls back once all parts are computed, or could not be: Buffer::when_ready has the rules.
void when_ready(const Numbers& numbers, std::function<void(const RunError*)> done);
/// The first number in host memory, row-major without gaps, where all stay while `numbers` does: the plugin's own
/// memory, or else a copy. Waits for them. Throws RunError.
const void* host_data(const Numbers& numbers);
/// The buffer that has all numbers in host memory, as a copy would; null where there is none.
const std::shared_ptr<const Buffer>* buffer_on_host(const Numbers& numbers);
/// Writes all numbers to host memory of `size_bytes`. Waits for them. Throws RunError.
void copy_to_host(const Numbers& numbers, void* target);
Numbers on_host(const Numbers& numbers);
/// A copy in host memory that is larger, with zeros behind the numbers.
Numbers padded(const Numbers& numbers, const Shape& shape);

}  // namespace jaxexp::runtime

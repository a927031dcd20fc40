// An array, or one device's part of one, in a device's memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/plugin/client.h"
#include "runtime/plugin/element_type.h"

namespace jaxexp::runtime {

class Buffer {
 public:
  Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* buffer)
      : client_(std::move(client)), buffer_(buffer, {client_->api()}), ready_(nullptr, {client_->api()}) {}

  struct Source {
    const ElementType* type;
    std::span<const std::int64_t> shape;
    const void* data;                       // the first number
    std::span<const std::int64_t> strides;  // in bytes; none: row-major without gaps
    std::shared_ptr<const void> owner;      // null: `data` is there during the call only, and is copied
  };
  /// Puts numbers into a device's memory; `memory` may be null, for the one that the device takes. Throws RunError.
  static std::shared_ptr<const Buffer> from_host(const std::shared_ptr<const Client>& client, const Source& source,
                                                 const Device& device, PJRT_Memory* memory);

  /// Numbers that another library has in a device's memory, row-major without gaps. They are there once the device's
  /// stream has done what it has to do now.
  struct Foreign {
    const ElementType* type;
    std::span<const std::int64_t> shape;
    void* data;
    void (*release)(void* data, void* owner);  // is called when nothing needs them any more
    void* owner;
  };
  /// Uses them where they are. Throws RunError: then nothing is released.
  static std::shared_ptr<const Buffer> on_device(const std::shared_ptr<const Client>& client, const Foreign& foreign,
                                                 const Device& device);

  PJRT_Buffer* get() const { return buffer_.get(); }
  const std::shared_ptr<const Client>& client() const { return client_; }

  PJRT_Buffer_Type type() const;
  std::vector<std::int64_t> shape() const;
  PJRT_Device* device() const {
    PJRT_Device* const known = device_.load(std::memory_order_relaxed);
    return known ? known : find_device();
  }
  /// As after a donation.
  bool is_deleted() const;
  /// Until the numbers are there. Throws RunError where they cannot be computed.
  void wait() const;
  /// Whether `wait` would return, or throw, at once.
  bool is_ready() const;
  /// The same, for a buffer that nobody else has yet: if it is so, the functions above need not ask again.
  bool knows_ready();
  /// Runs `done` when it would, in this thread or in one of the plugin's, with the error that it would throw, or null.
  /// `done` must not throw.
  void when_ready(std::function<void(const RunError*)> done) const;
  /// Writes the numbers to `target`, row-major without gaps, `size` bytes. Waits for them. Throws RunError.
  void copy_to(void* target, std::size_t size) const;
  /// Whether the plugin has the numbers in host memory, in the form in which `copy_to` writes them, and says where.
  bool is_on_host(const ElementType& type, std::span<const std::int64_t> shape) const;
  /// The same of any memory.
  bool lies_as_on_host(const ElementType& type, std::span<const std::int64_t> shape) const;
  /// Where the numbers are, in the memory of the device. Waits for them. Throws RunError, also where they were donated.
  const void* data() const;

 private:
  PJRT_Event* ready_event() const;
  PJRT_Device* find_device() const;
  const Api& api() const { return client_->api(); }

  std::shared_ptr<const Client> client_;  // has to outlive the buffer
  Owned<PJRT_Buffer> buffer_;
  Owned<PJRT_Event> ready_;                             // if it had come when somebody asked
  mutable std::atomic<PJRT_Device*> device_ = nullptr;  // once it is known
};

}  // namespace jaxexp::runtime

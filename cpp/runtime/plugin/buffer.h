// An array, or one device's part of one, in a device's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/plugin/client.h"
#include "runtime/plugin/element_type.h"

namespace jaxexp::runtime {

class Buffer {
 public:
  /// Takes over a buffer.
  Buffer(std::shared_ptr<const Client> client, PJRT_Buffer* buffer)
      : client_(std::move(client)), buffer_(buffer, {client_->api()}) {}

  /// Where the numbers of a new buffer come from.
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

  PJRT_Buffer* get() const { return buffer_.get(); }
  const std::shared_ptr<const Client>& client() const { return client_; }

  PJRT_Buffer_Type type() const;
  std::vector<std::int64_t> shape() const;
  PJRT_Device* device() const;
  /// As after a donation.
  bool is_deleted() const;
  /// Until the numbers are there. Throws RunError where they cannot be computed.
  void wait() const;
  /// Writes the numbers to `target`, row-major without gaps, `size` bytes. Waits for them. Throws RunError.
  void copy_to(void* target, std::size_t size) const;

 private:
  const Api& api() const { return client_->api(); }

  std::shared_ptr<const Client> client_;  // has to outlive the buffer
  Owned<PJRT_Buffer> buffer_;
};

}  // namespace jaxexp::runtime

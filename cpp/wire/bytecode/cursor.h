// A place in a section of MLIR bytecode, and the numbers that can be read there.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "wire/base/error.h"

namespace jaxexp::wire {

class Cursor {
 public:
  Cursor(std::span<const std::uint8_t> module, const Path& where) : Cursor(module, module, where) {}

  bool at_end() const { return at_ == data_.size(); }
  std::size_t left() const { return data_.size() - at_; }
  std::size_t left_in_module() const { return static_cast<std::size_t>(module_ + size_ - data_.data()) - at_; }

  std::uint8_t byte() {
    need(1);
    return data_[at_++];
  }

  /// An unsigned integer: the zeros at the low end of its first byte count the bytes that follow.
  std::uint64_t number() {
    const std::uint8_t first = byte();
    if (first & 1) return first >> 1;
    const unsigned more = first == 0 ? 8 : static_cast<unsigned>(std::countr_zero(first));
    need(more);
    std::uint64_t value = 0;
    for (unsigned i = more; i-- > 0;) value = value << 8 | data_[at_ + i];
    at_ += more;
    return first == 0 ? value : (value << 8 | first) >> (more + 1);
  }

  /// A signed one, in which the lowest bit is the sign.
  std::int64_t signed_number() {
    const std::uint64_t coded = number();
    return static_cast<std::int64_t>(coded >> 1) ^ -static_cast<std::int64_t>(coded & 1);
  }

  /// How many things follow that take a byte each, or more.
  std::uint64_t count(const char* what) { return counted(number(), what); }
  std::uint64_t counted(std::uint64_t n, const char* what) const { return counted(n, what, left()); }
  std::uint64_t counted(std::uint64_t n, const char* what, std::size_t bytes) const {
    if (n > bytes) refuse(std::to_string(n) + " " + what + " in " + std::to_string(bytes) + " bytes");
    return n;
  }

  std::uint64_t index(std::uint64_t size, const char* what) { return indexed(number(), size, what); }
  std::uint64_t indexed(std::uint64_t i, std::uint64_t size, const char* what) const {
    if (i >= size) refuse("the number " + std::to_string(i) + " for one of " + std::to_string(size) + " " + what);
    return i;
  }

  std::span<const std::uint8_t> bytes(std::uint64_t size) {
    need(size);
    const auto part = data_.subspan(at_, size);
    at_ += size;
    return part;
  }

  /// The next bytes as a section of their own.
  Cursor part(std::uint64_t size) { return Cursor(bytes(size), {module_, size_}, *where_); }

  /// Bytes of this section, wherever this place is in it.
  Cursor slice(std::size_t begin, std::size_t size) const {
    return Cursor(data_.subspan(begin, size), {module_, size_}, *where_);
  }
  std::size_t place() const { return at_; }
  std::size_t size_of_module() const { return size_; }

  /// Up to a zero, which is left out.
  std::span<const std::uint8_t> text() {
    const auto rest = data_.subspan(at_);
    const auto zero = std::find(rest.begin(), rest.end(), 0);
    if (zero == rest.end()) refuse("a text without an end");
    const auto part = bytes(static_cast<std::uint64_t>(zero - rest.begin()));
    ++at_;
    return part;
  }

  /// The next section: its kind, and a cursor for its data.
  std::pair<unsigned, Cursor> section() {
    constexpr unsigned aligned = 0x80;
    constexpr std::uint8_t padding = 0xCB;
    const unsigned kind = byte();
    const std::uint64_t size = number();
    if (kind & aligned) {
      const std::uint64_t alignment = number();
      if (!std::has_single_bit(alignment) || alignment > max_alignment)
        refuse("a section aligned to " + std::to_string(alignment) + " bytes");
      while (static_cast<std::uint64_t>(data_.data() + at_ - module_) % alignment != 0)
        if (byte() != padding) refuse("other bytes than padding");
    }
    return {kind & ~aligned, part(size)};
  }

  [[noreturn]] void refuse(const std::string& found) const {
    throw Error(*where_, "MLIR bytecode", found + " at byte " + std::to_string(data_.data() + at_ - module_));
  }

 private:
  Cursor(std::span<const std::uint8_t> data, std::span<const std::uint8_t> module, const Path& where)
      : data_(data), module_(module.data()), size_(module.size()), where_(&where) {}

  static constexpr std::uint64_t max_alignment = std::uint64_t{1} << 16;

  void need(std::uint64_t size) const {
    if (size > left()) refuse(std::to_string(left()) + " bytes where " + std::to_string(size) + " have to follow");
  }

  std::span<const std::uint8_t> data_;
  const std::uint8_t* module_;  // alignment counts from its first byte
  std::size_t size_;            // of the module
  std::size_t at_ = 0;
  const Path* where_;
};

}  // namespace jaxexp::wire

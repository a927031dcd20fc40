// A contiguous buffer of any Python object, held while it is in use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "bindings/base/file.h"
#include "bindings/base/nanobind.h"
#include "bindings/base/objects.h"
#include "wire/base/memory.h"

namespace jaxexp::bindings {

/// An argument that has a buffer. Whoever takes the buffer says what is wrong with one that has none.
struct HasBuffer : nb::handle {
  static constexpr auto Name = nb::detail::const_name("typing_extensions.Buffer");
  using nb::handle::handle;
  HasBuffer(nb::handle object) : nb::handle(object) {}
  static bool check_(nb::handle) { return true; }
};

/// Below this many bytes, letting other threads run costs more than it gives them.
inline constexpr std::size_t worth_releasing_gil = std::size_t{1} << 20;

/// Runs a function that reads `size` bytes, without the GIL where there are many.
template <class Function>
auto over(std::size_t size, const Function& function) {
  return size < worth_releasing_gil ? function() : unlocked(function);
}

/// Holds a Py_buffer, which keeps its owner from moving or freeing it.
class Buffer {
 public:
  /// Of a file that is read in parts, `in_parts` leaves it to the caller to fetch what is looked at; otherwise all of
  /// it is fetched now.
  explicit Buffer(nb::handle owner, bool in_parts = false) : in_parts_(in_parts) {
    const InParts scope(in_parts_);
    // Whoever holds a buffer of a memoryview keeps its owner from releasing it. One of our own holds the same bytes.
    const nb::object own =
        PyMemoryView_Check(owner.ptr()) ? owned(PyMemoryView_FromObject(owner.ptr())) : nb::borrow(owner);
    if (PyObject_GetBuffer(own.ptr(), &info_, PyBUF_SIMPLE) == 0) return;
    // Owners whose bytes are not contiguous raise all kinds of errors; memoryview raises one that explains it.
    PyErr_Clear();
    const nb::object contiguous = view(owner);
    if (PyObject_GetBuffer(contiguous.ptr(), &info_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&info_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::span<const std::uint8_t> bytes() const {
    return {static_cast<const std::uint8_t*>(info_.buf), static_cast<std::size_t>(info_.len)};
  }
  bool writable() const { return !info_.readonly; }
  /// Whether nobody can change the bytes: those of `bytes`, and of files as they were read. Other owners of read-only
  /// buffers may: a mapped file is what others write to it.
  bool is_constant() const {
    nb::handle owner = info_.obj;
    if (PyMemoryView_Check(owner.ptr())) owner = PyMemoryView_GET_BASE(owner.ptr());
    return owner.is_valid() && (PyBytes_CheckExact(owner.ptr()) || file_of(owner) != nullptr);
  }

  /// A read-only memoryview of a part of bytes(), without a copy.
  nb::memoryview part(std::span<const std::uint8_t> bytes) const {
    const InParts scope(in_parts_);
    const std::ptrdiff_t start = bytes.data() - this->bytes().data();
    const nb::object part = view(info_.obj)[nb::slice(start, start + static_cast<std::ptrdiff_t>(bytes.size()))];
    return nb::borrow<nb::memoryview>(part.attr("toreadonly")());
  }

  /// As an artifact's FlatBuffers are written.
  static constexpr std::size_t alignment = alignof(std::uint32_t);

  static bool is_aligned(std::span<const std::uint8_t> bytes, std::size_t alignment = Buffer::alignment) {
    return reinterpret_cast<std::uintptr_t>(bytes.data()) % alignment == 0;
  }

 private:
  /// A memoryview of an object's bytes. Raises TypeError where the object has no contiguous buffer.
  static nb::object view(nb::handle owner) { return owned(PyMemoryView_FromObject(owner.ptr())).attr("cast")("B"); }

  const bool in_parts_;
  Py_buffer info_;
};

/// A copy, made while other threads run.
inline nb::bytes copy_of(std::span<const std::uint8_t> bytes) {
  nb::bytes copy = owned<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes.size())));
  auto* const target = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(copy.ptr()));
  over(bytes.size(), [&] {
    wire::in_large_pages({target, bytes.size()});
    std::ranges::copy(bytes, target);
  });
  return copy;
}

inline std::shared_ptr<const Buffer> copied(std::span<const std::uint8_t> bytes) {
  return std::make_shared<const Buffer>(copy_of(bytes));
}

/// The buffer itself where it can be read in place. A copy of it where somebody could change the bytes later: what was
/// verified would not be what is used (a scratch buffer that is used again, a view of one, a mapped file that is
/// written to). Also where they are not aligned as FlatBuffers are written. `is_kept` says that the caller keeps a
/// read-only buffer what it is while it is in use.
inline std::shared_ptr<const Buffer> stable(nb::handle owner, std::size_t alignment = Buffer::alignment,
                                            bool in_parts = false, bool is_kept = false) {
  auto buffer = std::make_shared<const Buffer>(owner, in_parts);
  const bool stays = buffer->is_constant() || (is_kept && !buffer->writable());
  return stays && Buffer::is_aligned(buffer->bytes(), alignment) ? buffer : copied(buffer->bytes());
}

}  // namespace jaxexp::bindings

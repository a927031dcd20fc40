// A contiguous buffer of any Python object, held while it is in use.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

namespace jaxexp {

namespace nb = nanobind;

/// Below this many bytes, letting other threads run costs more than it gives them.
inline constexpr std::size_t worth_releasing_gil = std::size_t{1} << 20;

/// Owns a memoryview of bytes, which holds the Py_buffer and keeps its owner from moving it.
class Buffer {
 public:
  explicit Buffer(nb::handle owner) {
    const nb::object any = nb::steal(PyMemoryView_FromObject(owner.ptr()));
    if (!any.is_valid()) throw nb::python_error();
    view_ = any.attr("cast")("B");
  }

  std::span<const std::uint8_t> bytes() const {
    return {static_cast<const std::uint8_t*>(info().buf), static_cast<std::size_t>(info().len)};
  }
  bool writable() const { return !info().readonly; }

  /// A read-only memoryview of a part of bytes(), without a copy.
  nb::object part(std::span<const std::uint8_t> bytes) const {
    const std::ptrdiff_t start = bytes.data() - this->bytes().data();
    return view_[nb::slice(start, start + static_cast<std::ptrdiff_t>(bytes.size()))].attr("toreadonly")();
  }

 private:
  const Py_buffer& info() const { return *PyMemoryView_GET_BUFFER(view_.ptr()); }

  nb::object view_;
};

}  // namespace jaxexp

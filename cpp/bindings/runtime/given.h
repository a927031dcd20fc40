// Arrays of Python, as calls take them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/base/nanobind.h"
#include "jaxexp/array.h"
#include "jaxexp/runtime.h"

namespace jaxexp::bindings {

/// Memory of a Python object, which stays where it is while this lives.
class View {
 public:
  View(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &info_, flags) != 0) throw nb::python_error();
  }
  View(View&& other) noexcept : info_(std::exchange(other.info_, Py_buffer{})) {}
  View& operator=(View&&) = delete;
  ~View() { PyBuffer_Release(&info_); }

  void* data() const { return info_.buf; }
  std::size_t size_bytes() const { return static_cast<std::size_t>(info_.len); }
  std::vector<std::int64_t> shape() const { return {info_.shape, info_.shape + info_.ndim}; }

 private:
  Py_buffer info_;
};

/// The arguments of a call: arrays on devices, or views of row-major memory, which the plugin copies before the call
/// returns.
class Given {
 public:
  /// `objects` are an Array, or what has a buffer, each; `dtypes` name the dtypes of the latter.
  Given(nb::handle objects, nb::handle dtypes);

  const std::vector<Array>& arrays() const { return arrays_; }

 private:
  std::vector<View> views_;
  std::vector<Array> arrays_;
};

/// Calls a function of Python, or None, which has to outlive it.
CheckFile to_check(const nb::object& check_file);

/// The array of the tensor in a capsule, which is taken out of it.
Array from_dlpack(const Runtime& runtime, nb::handle capsule);

}  // namespace jaxexp::bindings

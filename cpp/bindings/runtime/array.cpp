// Arrays on devices. Python reads those on the CPU where they are.
#include <dlpack/dlpack.h>

#include "bindings/base/objects.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"

namespace jaxexp::bindings {
namespace {

/// A buffer that nobody writes to, when the numbers are there.
int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  try {
    const Array& array = *nb::inst_ptr<Array>(self);
    const void* const data = unlocked([&] { return array.data(); });
    const auto size = static_cast<Py_ssize_t>(array.size_bytes());
    return PyBuffer_FillInfo(view, self, const_cast<void*>(data), size, /*readonly=*/1, flags);
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return -1;
}

// The names that libraries look for in a capsule, and what it is called when one of them has taken the tensor.
constexpr const char *tensor = "dltensor", *versioned_tensor = "dltensor_versioned";

template <class Tensor>
void delete_unused(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;  // it was taken
  auto* const unused = static_cast<Tensor*>(PyCapsule_GetPointer(capsule, name));
  if (unused->deleter) unused->deleter(unused);
}

nb::object to_dlpack(const Array& array, bool versioned) {
  if (versioned) {
    auto* const made = unlocked([&] { return array.to_dlpack(); });
    return owned(PyCapsule_New(made, versioned_tensor, [](PyObject* capsule) {
      delete_unused<DLManagedTensorVersioned>(capsule, versioned_tensor);
    }));
  }
  auto* const made = unlocked([&] { return array.to_unversioned_dlpack(); });
  return owned(PyCapsule_New(made, tensor, [](PyObject* capsule) { delete_unused<DLManagedTensor>(capsule, tensor); }));
}

nb::tuple dlpack_device(const Array& array) {
  auto* const made = unlocked([&] { return array.to_dlpack(); });
  const DLDevice device = made->dl_tensor.device;
  made->deleter(made);
  return nb::make_tuple(static_cast<int>(device.device_type), device.device_id);
}

}  // namespace

Array from_dlpack(const Runtime& runtime, nb::handle capsule) {
  const auto taken = [&](auto* kind, const char* name, const char* used) {
    using Tensor = std::remove_pointer_t<decltype(kind)>;
    auto* const found = static_cast<Tensor*>(PyCapsule_GetPointer(capsule.ptr(), name));
    if (!found) throw nb::python_error();
    PyCapsule_SetName(capsule.ptr(), used);  // nobody else takes it meanwhile
    try {
      return unlocked([&] { return runtime.from_dlpack(found); });
    } catch (...) {
      PyCapsule_SetName(capsule.ptr(), name);
      throw;
    }
  };
  if (PyCapsule_IsValid(capsule.ptr(), versioned_tensor))
    return taken(static_cast<DLManagedTensorVersioned*>(nullptr), versioned_tensor, "used_dltensor_versioned");
  return taken(static_cast<DLManagedTensor*>(nullptr), tensor, "used_dltensor");
}

void define_runtime_array(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};
  nb::class_<Array>(m, "Array", nb::type_slots(slots), "Numbers on devices, which may still be computed.")
      .def_prop_ro("dtype", &Array::dtype)
      .def_prop_ro(
          "shape",
          [](const Array& array) {
            return new_tuple(array.shape().size(), [&](std::size_t i) { return nb::cast(array.shape()[i]); });
          },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def("wait", &Array::wait, nb::call_guard<Unlocked>(), "Waits until the numbers are computed.")
      .def("is_ready", &Array::is_ready)
      .def("to_dlpack", &to_dlpack, "versioned"_a, "A capsule with a tensor of DLPack, of version 1.0 or older.")
      .def("dlpack_device", &dlpack_device, nb::sig("def dlpack_device(self) -> tuple[int, int]"))
      .def("__str__", [](const Array& array) { return text(array.str()); });
}

}  // namespace jaxexp::bindings

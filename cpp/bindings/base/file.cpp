// Only what was asked for is read; whoever takes the whole buffer gets all of the file.
#include "bindings/base/file.h"

#include <cstdint>
#include <limits>
#include <new>

#include "bindings/base/buffer.h"
#include "bindings/base/errors.h"
#include "bindings/base/objects.h"
#include "wire/base/memory.h"

namespace jaxexp::bindings {

thread_local bool InParts::wanted_ = false;

namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const wire::FileBytes& file = *nb::inst_ptr<wire::FileBytes>(self);
  const auto bytes = file.bytes();
  try {
    if (!InParts::is_wanted()) fetch(file, bytes, /*is_digested=*/false);
  } catch (...) {
    const nb::object error = python_exception(std::current_exception());
    PyErr_SetObject(error.type().ptr(), error.ptr());
    view->obj = nullptr;
    return -1;
  }
  auto* const start = const_cast<std::uint8_t*>(bytes.data());  // which a read-only view does not write to
  return PyBuffer_FillInfo(view, self, start, static_cast<Py_ssize_t>(bytes.size()), /*readonly=*/1, flags);
}

nb::bytes read(const wire::FileBytes& file, std::uint64_t position, std::size_t size) {
  if (position > file.bytes().size() || size > file.bytes().size() - position)
    throw nb::value_error("a range has to lie inside the file");
  nb::bytes bytes = owned<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  auto* const start = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes.ptr()));
  const Unlocked unlocked;
  wire::in_large_pages({start, size});
  file.read(position, {start, size});
  return bytes;
}

nb::object memory(const wire::FileBytes& file) {
  auto memory = std::make_unique<Memory>(file.memory());
  nb::object capsule = owned(PyCapsule_New(memory.get(), memory_in_capsule, [](PyObject* capsule) {
    delete static_cast<Memory*>(PyCapsule_GetPointer(capsule, memory_in_capsule));
  }));
  memory.release();
  return capsule;
}

}  // namespace

const wire::FileBytes* file_of(nb::handle object) {
  return nb::isinstance<wire::FileBytes>(object) ? nb::inst_ptr<const wire::FileBytes>(object) : nullptr;
}

void fetch(const wire::FileBytes& file, wire::FileBytes::Bytes part, bool is_digested) {
  if (!file.is_in_parts()) return;
  const auto read = [&] { file.fetch(part, is_digested); };
  PyGILState_Check() ? unlocked(read) : read();
}

std::filesystem::path path_of(nb::handle path) {
  const nb::object name = owned(PyOS_FSPath(path.ptr()));
#ifdef _WIN32
  PyObject* decoded = nullptr;
  if (!PyUnicode_FSDecoder(name.ptr(), &decoded)) throw nb::python_error();
  const nb::object text = nb::steal(decoded);
  wchar_t* const wide = PyUnicode_AsWideCharString(text.ptr(), nullptr);
  if (!wide) throw nb::python_error();
  const std::filesystem::path converted(wide);
  PyMem_Free(wide);
  return converted;
#else
  PyObject* encoded = nullptr;
  if (!PyUnicode_FSConverter(name.ptr(), &encoded)) throw nb::python_error();
  const nb::object bytes = nb::steal(encoded);
  return PyBytes_AS_STRING(bytes.ptr());
#endif
}

void define_file(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};
  nb::class_<wire::FileBytes>(m, "FileBytes", nb::type_slots(slots), nb::is_weak_referenceable(),
                              "The bytes of a file, read-only, and as they were when they were first read.")
      .def(
          "__init__",
          [](wire::FileBytes* file, nb::handle path, bool in_parts, bool at_once) {
            using Reading = wire::FileBytes::Reading;
            const Reading how = at_once ? Reading::at_once : in_parts ? Reading::in_parts : Reading::large_in_parts;
            const std::filesystem::path name = path_of(path);
            const Unlocked unlocked;
            new (file) wire::FileBytes(name, how, std::numeric_limits<std::uint64_t>::max());
          },
          "path"_a, "in_parts"_a = false, "at_once"_a = false,
          nb::sig("def __init__(self, path: str | bytes | os.PathLike[str], in_parts: bool = False, "
                  "at_once: bool = False) -> None"))
      .def("__len__", [](const wire::FileBytes& file) { return file.bytes().size(); })
      .def("read", &read, "position"_a, "size"_a, "A range of it, of which nothing is kept.")
      .def("memory", &memory, "What keeps the bytes, for `_runtime.Program.of_bytes`.")
      .def("is_changed", &wire::FileBytes::is_changed, nb::call_guard<Unlocked>(),
           "Whether somebody wrote to the file since it was opened.");
}

}  // namespace jaxexp::bindings

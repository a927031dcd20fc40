// Plugins, and what they are given beside functions.
#include <nanobind/stl/filesystem.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "bindings/base/objects.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"

namespace jaxexp::bindings {
namespace {

using Options = Runtime::Options;

Options to_options(const nb::dict& dict) {
  Options options;
  for (const auto& [name, value] : dict) {
    Options::mapped_type& option = options[nb::cast<std::string>(name)];
    if (PyBool_Check(value.ptr()))
      option = nb::cast<bool>(value);
    else if (PyLong_Check(value.ptr()))
      option = nb::cast<std::int64_t>(value);
    else if (PyFloat_Check(value.ptr()))
      option = nb::cast<float>(value);
    else
      option = nb::cast<std::string>(value);
  }
  return options;
}

void start(Runtime* self, const std::filesystem::path& file, const nb::dict& options) {
  const Options given = to_options(options);
  const Unlocked unlocked;
  new (self) Runtime(file, given);
}

Function load(const Runtime& runtime, const Program& program, std::vector<std::size_t> devices,
              const std::filesystem::path& executables, const std::filesystem::path& weights, bool stable,
              const std::vector<std::map<std::string, std::int64_t>>& sizes, bool pad, bool only_sizes, bool warm_up,
              const std::filesystem::path& compile_cache, std::uint64_t compile_cache_bytes,
              const nb::object& check_file) {
  const CheckFile check = to_check(check_file);
  const Unlocked unlocked;
  return runtime.load(program.artifact, {.devices = std::move(devices),
                                         .executables = executables,
                                         .compile_cache = compile_cache,
                                         .compile_cache_bytes = compile_cache_bytes,
                                         .weights = weights,
                                         .stable = stable,
                                         .check_file = check,
                                         .owner = program.owner,
                                         .file = program.file,
                                         .sizes = sizes,
                                         .pad = pad,
                                         .only_sizes = only_sizes,
                                         .warm_up = warm_up});
}

Array put(const Runtime& runtime, nb::handle object, nb::handle dtype, std::size_t device) {
  const Given given(nb::make_tuple(object), nb::make_tuple(dtype));
  const Unlocked unlocked;
  return runtime.put(given.arrays().front(), device);
}

/// A capsule has the address of a function, as `jax.ffi.pycapsule` makes one.
void register_ffi(const Runtime& runtime, const std::string& target, nb::handle capsule) {
  void* const address = PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr()));
  if (!address) throw nb::python_error();
  const Unlocked unlocked;
  runtime.register_ffi(target, reinterpret_cast<FfiHandler*>(address));
}

}  // namespace

void define_plugin(nb::module_& m) {
  nb::class_<Runtime>(m, "Plugin", "A PJRT plugin with its devices.")
      .def(
          "__init__", &start, "file"_a, "options"_a,
          nb::sig(
              "def __init__(self, file: str | os.PathLike[str], options: dict[str, str | int | float | bool]) -> None"))
      .def_prop_ro("platform", [](const Runtime& r) { return text(r.platform()); })
      .def_prop_ro("nr_devices", &Runtime::nr_devices)
      .def("load", &load, "program"_a, "devices"_a, "executables"_a, "weights"_a, "stable"_a, "sizes"_a, "pad"_a,
           "only_sizes"_a, "warm_up"_a, "compile_cache"_a, "compile_cache_bytes"_a, "check_file"_a.none(),
           nb::sig("def load(self, program: Program, devices: collections.abc.Sequence[int], "
                   "executables: str | os.PathLike[str], weights: str | os.PathLike[str], stable: bool, "
                   "sizes: collections.abc.Sequence[dict[str, int]], pad: bool, only_sizes: bool, warm_up: bool, "
                   "compile_cache: str | os.PathLike[str], compile_cache_bytes: int, "
                   "check_file: collections.abc.Callable[[str, memoryview], None] | None) -> Function"),
           "A function on devices of these numbers. Paths may be empty. `check_file` refuses files by an exception; it "
           "is not called later.")
      .def("put", &put, "array"_a, "dtype"_a, "device"_a,
           nb::sig("def put(self, array: object, dtype: str, device: int) -> Array"))
      .def("from_dlpack", &from_dlpack, "capsule"_a, nb::sig("def from_dlpack(self, capsule: object) -> Array"),
           "The tensor in a capsule, which is taken out of it: in host memory, or on a device of the plugin.")
      .def("stream", &Runtime::stream, "device_type"_a, "device_number"_a,
           "The stream that has to wait for a tensor on a device of DLPack, before the tensor is taken.")
      .def("register_ffi", &register_ffi, "target"_a, "capsule"_a);
  m.def("use_lapack", &Runtime::use_lapack, "library"_a, nb::call_guard<Unlocked>(),
        nb::sig("def use_lapack(library: str | os.PathLike[str]) -> None"));
}

}  // namespace jaxexp::bindings

// Calls run without the GIL, and so does everything that may compile or open files.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "bindings/base/objects.h"
#include "bindings/runtime/define.h"
#include "bindings/runtime/given.h"

namespace jaxexp::bindings {

Given::Given(nb::handle objects, nb::handle dtypes) {
  const auto size = static_cast<std::size_t>(nb::len(objects));
  views_.reserve(size), arrays_.reserve(size);
  nb::object dtype = nb::steal(PyObject_GetIter(dtypes.ptr()));
  for (const nb::handle object : objects) {
    const nb::object name = owned(PyIter_Next(dtype.ptr()));
    if (nb::isinstance<Array>(object)) {
      arrays_.push_back(nb::cast<Array>(object));
      continue;
    }
    const View& view = views_.emplace_back(object, PyBUF_C_CONTIGUOUS);
    arrays_.emplace_back(nb::cast<std::string_view>(name), view.shape(), view.data());
    if (const Array& made = arrays_.back(); made.size_bytes() != view.size_bytes())
      throw RunError(RunError::Reason::argument, made.str() + " takes " + std::to_string(made.size_bytes()) +
                                                     " bytes, and not " + std::to_string(view.size_bytes()));
  }
}

CheckFile to_check(const nb::object& check_file) {
  if (check_file.is_none()) return {};
  return [&check_file](const std::filesystem::path& file, std::span<const std::uint8_t> bytes) {
    const nb::gil_scoped_acquire locked;
    auto* const begin = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
    const nb::object view = owned(PyMemoryView_FromMemory(begin, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
    const auto release = [&] { view.attr("release")(); };  // the memory is gone when the caller returns
    try {
      check_file(nb::str(nb::cast(file)), view);
    } catch (...) {
      release();
      throw;
    }
    release();
  };
}

namespace {

nb::tuple to_tuple(std::vector<Array> arrays) {
  return new_tuple(arrays.size(), [&](std::size_t i) { return nb::cast(std::move(arrays[i])); });
}

nb::tuple call(const Function& function, nb::handle objects, nb::handle dtypes) {
  const Given given(objects, dtypes);
  return to_tuple(unlocked([&] { return function.call(given.arrays()); }));
}

void compile(const Function& function, const std::optional<nb::dict>& sizes) {
  std::map<std::string, std::int64_t> found;
  if (sizes)
    for (const auto& [name, size] : *sizes) found[nb::cast<std::string>(name)] = nb::cast<std::int64_t>(size);
  const Unlocked unlocked;
  sizes ? function.compile(found) : function.compile();
}

nb::dict weights(const Function& function) {
  auto arrays = unlocked([&] { return function.weights(); });
  nb::dict found = new_dict();
  for (auto& [name, array] : arrays) found[text(name)] = nb::cast(std::move(array));
  return found;
}

}  // namespace

void define_function(nb::module_& m) {
  using Release = nb::call_guard<Unlocked>;
  nb::class_<Function>(m, "Function", "A function that is ready to be called, by several threads at once.")
      .def_prop_ro("name", [](const Function& f) { return text(f.artifact().function_name()); })
      .def_prop_ro(
          "arguments", [](const Function& f) { return described(unlocked([&] { return f.arguments(); })); },
          nb::sig("def arguments(self) -> tuple[tuple[str, str, tuple[str, ...], str], ...]"),
          "Path, dtype, dimensions, and a text for people, of what a call takes; weights that were found are none.")
      .def_prop_ro(
          "results", [](const Function& f) { return described(unlocked([&] { return f.artifact().results(); })); },
          nb::sig("def results(self) -> tuple[tuple[str, str, tuple[str, ...], str], ...]"))
      .def_prop_ro(
          "has_weights", [](const Function& f) { return f.arguments().size() < f.artifact().arguments().size(); },
          nb::call_guard<Unlocked>(), "Whether the first arguments are weights that were found.")
      .def("compile", &compile, "sizes"_a = nb::none(),
           nb::sig("def compile(self, sizes: dict[str, int] | None = None) -> None"))
      .def("save_executable", &Function::save_executable, "file"_a, Release(),
           nb::sig("def save_executable(self, file: str | os.PathLike[str]) -> None"))
      .def("why_compiled", [](const Function& f) { return text(f.why_compiled()); })
      .def("call", &call, "arguments"_a, "dtypes"_a,
           nb::sig("def call(self, arguments: Sequence[object], dtypes: Sequence[str]) -> tuple[Array, ...]"),
           "Results, which may still be computed. Arguments are Arrays, or have buffers, of these dtypes.")
      .def("vjp", &Function::vjp, Release())
      .def("weights", &weights, nb::sig("def weights(self) -> dict[str, Array]"))
      .def(
          "with_weights",
          [](const Function& f, const std::filesystem::path& file, const nb::object& check_file) {
            const CheckFile check = to_check(check_file);
            const Unlocked unlocked;
            return f.with_weights(file, check);
          },
          "file"_a, "check_file"_a.none(),
          nb::sig("def with_weights(self, file: str | os.PathLike[str], "
                  "check_file: collections.abc.Callable[[str, memoryview], None] | None) -> Function"));
}

}  // namespace jaxexp::bindings

// Reads and verifications in threads.
#include "bindings/base/define.h"

#include <nanobind/stl/optional.h>

#include <cstddef>
#include <utility>

#include "bindings/base/workers.h"
#include "bindings/many/read_many.h"
#include "bindings/many/verify_files.h"

namespace jaxexp::bindings {

void define_many(nb::module_& m) {
  nb::class_<ReadMany>(m, "ReadMany", "How many artifacts are read at once, and what is made of them.")
      .def(
          "__init__",
          [](ReadMany* made, const Functions& functions, std::size_t workers, bool stop, nb::object admit) {
            check_workers(workers);
            new (made) ReadMany{functions, workers, stop, std::move(admit)};
          },
          "functions"_a, "workers"_a, "stop"_a, "admit"_a.none(),
          nb::sig("def __init__(self, functions: Functions, workers: int, stop: bool, "
                  "admit: collections.abc.Callable[[Artifact], None] | None) -> None"))
      .def("items", &ReadMany::items, "items"_a, "in_parts"_a, "most_file_bytes"_a.none(),
           nb::sig("def items(self, items: list[object], in_parts: bool, most_file_bytes: int | None) "
                   "-> tuple[list[typing.Any], list[int]]"),
           "The functions in files and buffers, and the indices of the exceptions among them.")
      .def("slices", &ReadMany::slices, "owner"_a, "extents"_a,
           nb::sig("def slices(self, owner: typing_extensions.Buffer, extents: list[tuple[int, int, object]]) "
                   "-> tuple[list[typing.Any], list[int]]"),
           "The same for parts of one buffer.");
  m.def(
      "verify_files", &verify_files, "paths"_a, "workers"_a,
      nb::sig("def verify_files(paths: list[str], workers: int) -> "
              "list[tuple[int, bool, bool, None | int | tuple[str, str, str]]]"),
      "Verifies files in threads: structure, digests, and the bytecode of modules. For each its size, whether it has "
      "digests, whether weights are beside it, and what is wrong, if anything: an errno, or where, what was expected, "
      "and what was found.");
}

}  // namespace jaxexp::bindings

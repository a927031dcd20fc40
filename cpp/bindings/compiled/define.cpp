// Records are tuples: Python asks for a few of them, once.
#include "bindings/base/define.h"

#include <filesystem>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "bindings/base/buffer.h"
#include "bindings/base/errors.h"
#include "bindings/base/objects.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/compiled/cpu.h"
#include "wire/compiled/records.h"
#include "wire/compiled/store.h"

namespace jaxexp::bindings {
namespace {

nb::str to_text(std::string_view text) {
  return owned<nb::str>(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

nb::dict to_dict(const wire::Entries& entries) {
  nb::dict dict = new_dict();
  for (const auto& [name, value] : entries) dict[to_text(name)] = to_text(value);
  return dict;
}

wire::Entries to_entries(const nb::dict& dict) {
  wire::Entries entries;
  for (const auto& [name, value] : dict)
    entries.emplace_back(nb::cast<nb::str>(name).c_str(), nb::cast<nb::str>(value).c_str());
  return entries;
}

nb::tuple read(const wire::FileBytes& file, std::uint64_t position) {
  const wire::ExecutableRecords found = unlocked([&] { return wire::read_executables(file, position); });
  nb::list records = new_list();
  for (const wire::ExecutableRecord& record : found.records)
    records.append(
        nb::make_tuple(to_dict(record.conditions), to_dict(record.call), record.position, record.size, record.digest));
  return nb::make_tuple(records, found.end);
}

using Texts = Argument<nb::dict, nb::str, nb::str>;

nb::bytes head(const Texts& conditions, const Texts& call, HasBuffer code) {
  const Buffer buffer(code);
  const auto bytes = buffer.bytes();
  const wire::Digest digest = over(bytes.size(), [&] { return wire::digest(bytes); });
  return to_bytes(wire::executable_head(to_entries(conditions), to_entries(call), bytes.size(), digest));
}

/// Who takes it drops it: `with`, or the end of the object, which garbage collection may put off.
class Turn {
 public:
  explicit Turn(wire::Store::Turn turn) : turn_(std::move(turn)) {}
  void end() {
    auto ended = std::exchange(turn_, std::nullopt);  // by one thread
    unlocked([&] { ended.reset(); });
  }

 private:
  std::optional<wire::Store::Turn> turn_;
};

void open_store(wire::Store* self, nb::handle folder, std::uint64_t max_bytes) {
  const std::filesystem::path name = path_of(folder);
  const Unlocked unlocked;
  new (self) wire::Store(name, max_bytes);
}

nb::object find(const wire::Store& store, const Texts& conditions) {
  const wire::Entries wanted = to_entries(conditions);
  const auto found = unlocked([&] { return store.find(wanted); });
  if (!found) return nb::none();
  return nb::make_tuple(to_dict(found->call), nb::bytes(found->code.data(), found->code.size()));
}

bool put(const wire::Store& store, const Texts& conditions, const Texts& call, HasBuffer code) {
  const Buffer buffer(code);
  const wire::Entries named = to_entries(conditions), needed = to_entries(call);
  const Unlocked unlocked;
  return store.put(named, needed, buffer.bytes());
}

void remove(const wire::Store& store, const Texts& conditions) {
  const wire::Entries unwanted = to_entries(conditions);
  const Unlocked unlocked;
  store.remove(unwanted);
}

nb::object turn(const wire::Store& store, const Texts& conditions) {
  const wire::Entries wanted = to_entries(conditions);
  auto found = unlocked([&] { return store.turn(wanted); });
  return found ? nb::cast(Turn(std::move(*found))) : nb::none();
}

void define_store(nb::module_& m) {
  nb::class_<Turn>(m, "CompilingTurn", "The right to compile what others would compile too: they wait.")
      .def("end", &Turn::end);
  nb::class_<wire::Store>(m, "ExecutableStore", "A folder with one file of executables for each set of conditions.")
      .def("__init__", &open_store, "folder"_a, "max_bytes"_a,
           nb::sig("def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None"))
      .def("find", &find, "conditions"_a,
           nb::sig("def find(self, conditions: dict[str, str]) -> tuple[dict[str, str], bytes] | None"),
           "What a call needs, and the code; None if there is none.")
      .def("put", &put, "conditions"_a, "call"_a, "code"_a,
           "Adds an entry, and removes old ones if there are too many bytes. Whether there is room for it.")
      .def("remove", &remove, "conditions"_a)
      .def("turn", &turn, "conditions"_a, nb::sig("def turn(self, conditions: dict[str, str]) -> CompilingTurn | None"),
           "None if somebody else has the turn.");
  m.def(
      "store_name", [](const Texts& conditions) { return to_text(wire::Store::name(to_entries(conditions))); },
      "conditions"_a, "The name of a file in every store.");
}

}  // namespace

void define_compiled(nb::module_& m) {
  m.def(
      "read_executables", &read, "file"_a, "position"_a = 0,
      nb::sig("def read_executables(file: FileBytes, position: int = 0) -> "
              "tuple[list[tuple[dict[str, str], dict[str, str], int, int, bytes]], int]"),
      "The complete records of a file of executables, from the start or from where others end: conditions, what a call "
      "needs, position, size and digest of the code. Then where the last one ends.");
  m.def(
      "executables_head", [] { return to_bytes(wire::executables_head()); }, "The start of a new file of executables.");
  m.def("executable_head", &head, "conditions"_a, "call"_a, "code"_a,
        "A record of a file of executables, up to its code.");
  m.def("executable_padding", &wire::executable_padding, "size"_a, "How many zeros come behind code of this size.");
  m.def(
      "cpu_features", [] { return to_text(wire::cpu_features()); },
      "What the processor offers to this process. Equal texts mean equal instruction sets.");
  define_store(m);
}

}  // namespace jaxexp::bindings

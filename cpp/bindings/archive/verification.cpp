// Two passes in each step: over modules that are apart from members, and over members.
#include "bindings/archive/verification.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "wire/archive/ranges.h"
#include "wire/base/crew.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"

namespace jaxexp::bindings {

using namespace nb::literals;

/// A member as it is verified: from its header in the ZIP file on.
struct Verification::Part {
  std::uint32_t number;
  std::span<const std::uint8_t> bytes;
  std::vector<std::uint64_t> aligned = {};  // the same, where they are not
  std::optional<wire::Error> error = {};
};

struct Verification::Module {
  wire::ModuleDigests::key_type place;
  std::span<const std::uint8_t> bytes = {};
  wire::Digest digest = {};
};

Verification::Verification(nb::object index) : index_(std::move(index)) {
  static_cast<void>(nb::cast<const IndexView&>(index_));  // raises TypeError for another object
}

/// Those that are apart from a member, and new.
std::vector<Verification::Module> Verification::modules_of(std::uint32_t number) const {
  std::vector<Module> found;
  const auto& member = index().index().member(number);
  if (!member.place()->apart()) return found;
  for (const auto* module : *member.modules())
    if (const auto place = std::pair(module->position(), module->size()); !modules_.contains(place))
      found.push_back({place});
  return found;
}

nb::tuple Verification::extent(std::uint32_t number) const {
  const auto& place = *index().index().member(number).place();
  nb::list modules;
  for (const Module& module : modules_of(number))
    modules.append(nb::make_tuple(module.place.first, module.place.second));
  return nb::make_tuple(place.position() - place.header(), std::uint64_t{place.header()} + place.size(),
                        nb::tuple(modules));
}

nb::list Verification::step(const nb::list& numbers, const nb::list& parts, std::size_t workers) {
  std::vector<std::unique_ptr<const Buffer>> buffers;  // as long as they are read
  const auto bytes_of = [&](nb::handle part) {
    return buffers.emplace_back(std::make_unique<const Buffer>(part))->bytes();
  };
  std::vector<Part> members;
  std::vector<Module> modules;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = nb::cast<std::uint32_t>(numbers[i]);
    members.push_back({number, bytes_of(parts[i][0])});
    const nb::object given = parts[i][1];
    std::size_t k = 0;
    for (Module& module : modules_of(number)) {
      module.bytes = bytes_of(given[k++]);
      modules.push_back(module);
    }
  }
  std::ranges::sort(modules, {}, &Module::place);
  // Clang 14 cannot compile what std::ranges::unique of GCC's library returns.
  const auto same = [](const Module& one, const Module& other) { return one.place == other.place; };
  modules.erase(std::unique(modules.begin(), modules.end(), same), modules.end());
  return verify(members, modules, workers);
}

nb::tuple Verification::step_of_file(const wire::FileBytes& file, const nb::list& numbers, std::size_t first,
                                     std::size_t workers) {
  constexpr std::uint64_t most_bytes = std::uint64_t{8} << 20;  // and the last member's
  std::vector<Part> members;
  std::map<wire::ModuleDigests::key_type, Module> found;
  std::vector<wire::Range> ranges;
  for (std::uint64_t size = 0; first < numbers.size() && size < most_bytes; ++first) {
    const auto number = nb::cast<std::uint32_t>(numbers[first]);
    const auto& place = *index().index().member(number).place();
    members.push_back({number, {}});
    ranges.push_back({place.position() - place.header(), std::uint64_t{place.header()} + place.size()});
    size += ranges.back().size;
    for (Module& module : modules_of(number))
      if (found.try_emplace(module.place, module).second) size += module.place.second;
  }
  std::vector<Module> modules;
  for (const auto& [place, module] : found) {
    modules.push_back(module);
    ranges.push_back({place.first, place.second});
  }
  {
    nb::gil_scoped_release release;
    const auto bytes = wire::read_ranges(file, ranges, memory_);
    for (std::size_t i = 0; i < members.size(); ++i) members[i].bytes = bytes[i];
    for (std::size_t i = 0; i < modules.size(); ++i) modules[i].bytes = bytes[members.size() + i];
  }
  return nb::make_tuple(first, verify(members, modules, workers));
}

nb::list Verification::verify(std::vector<Part>& members, std::vector<Module>& modules, std::size_t workers) {
  digest(modules, workers);
  return verify(members, workers);
}

void Verification::digest(std::vector<Module>& modules, std::size_t workers) {
  if (modules.empty()) return;
  {
    nb::gil_scoped_release release;
    wire::Crew::run(workers, modules.size(),
                    [&](std::size_t i) { modules[i].digest = wire::digest(modules[i].bytes); });
  }
  for (const Module& module : modules) modules_.emplace(module.place, module.digest);
}

nb::list Verification::verify(std::vector<Part>& parts, std::size_t workers) const {
  const wire::ArchiveIndex& index = this->index().index();
  {
    wire::Known known;
    nb::gil_scoped_release release;
    constexpr std::size_t step = 16;
    const std::size_t jobs = (parts.size() + step - 1) / step;
    wire::Crew::run(workers, jobs, [&](std::size_t job) {
      for (Part& part : std::span(parts).subspan(job * step, std::min(step, parts.size() - job * step))) {
        try {
          wire::verify_member(index, part.number, part.bytes, modules_, known, part.aligned);
        } catch (wire::Error& error) {
          part.error = std::move(error);
        }
      }
    });
  }
  nb::list damaged;
  for (const Part& part : parts)
    if (const auto& error = part.error)
      damaged.append(nb::make_tuple(part.number, error->path, error->expected, error->found));
  return damaged;
}

void define_verification(nb::module_& m) {
  nb::class_<Verification>(m, "ArchiveVerification", "The verification of an archive's members, in steps.")
      .def(nb::init<nb::object>(), "index"_a, nb::sig("def __init__(self, index: ArchiveIndex) -> None"))
      .def("extent", &Verification::extent, "number"_a,
           nb::sig("def extent(self, number: int) -> tuple[int, int, tuple[tuple[int, int], ...]]"),
           "Where the bytes of a member are, from its header in the ZIP file on, and those of its modules that were in "
           "no step before.")
      .def("step", &Verification::step, "numbers"_a, "parts"_a, "workers"_a,
           nb::sig("def step(self, numbers: list[int], parts: list[tuple[bytes, list[bytes]]], "
                   "workers: int) -> list[tuple[int, str, str, str]]"),
           "Compares members with what they have to be, in threads, given the bytes that `extent` named. Returns for "
           "each damaged one its number, and where, what was expected, and what was found.")
      .def("step_of_file", &Verification::step_of_file, "file"_a, "numbers"_a, "first"_a, "workers"_a,
           nb::sig("def step_of_file(self, file: FileBytes, numbers: list[int], first: int, workers: int) "
                   "-> tuple[int, list[tuple[int, str, str, str]]]"),
           "The same for members of a file, from the first on, as many as make a step. Returns the first of the next "
           "step, too.");
}

}  // namespace jaxexp::bindings

// The verification of an archive's members, in steps.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings/archive/index_view.h"
#include "bindings/archive/scratch.h"
#include "bindings/base/buffer.h"
#include "wire/archive/verify_member.h"

namespace jaxexp::bindings {

/// Each module is read once, in whatever step, and by however many members it is used.
class Verification {
 public:
  explicit Verification(nb::object index);

  /// Where the bytes of a member are, its header included, and those of its modules that were in no step before.
  nb::tuple extent(std::uint32_t number) const;

  /// Compares members with what they have to be, in threads. `parts` has the bytes of each, and of the modules that
  /// `extent` named. Returns for each damaged one its number, and where, what was expected, and what was found.
  nb::list step(const nb::list& numbers, const nb::list& parts, std::size_t workers);

  /// The same for members of a file from `numbers[first]` on, as many as make a step. Returns the first of the next
  /// step, too.
  nb::tuple step_of_file(const wire::FileBytes& file, const nb::list& numbers, std::size_t first, std::size_t workers);

 private:
  struct Part;
  struct Module;

  std::vector<Module> modules_of(const wire::schema::Member& member) const;
  /// The numbers of members from `numbers[first]` on, and their modules, in the order of their places.
  std::vector<Part> parts_of(const nb::list& numbers, std::size_t first, std::vector<Module>& modules) const;
  void remember(const std::vector<Module>& modules);
  void verify(Part& part, wire::Known& known) const;

  const nb::object owner_;
  const wire::ArchiveIndex& index_;
  wire::ModuleDigests modules_;
  ScratchPool scratch_;
};

void define_verification(nb::module_& m);

}  // namespace jaxexp::bindings

// Files that C++ reads for Python.
#pragma once

#include <filesystem>
#include <memory>

#include "bindings/base/nanobind.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::bindings {

/// While one lives, this thread takes the buffer of a file that is read in parts without fetching all of it.
class InParts {
 public:
  explicit InParts(bool wanted) : before_(wanted_) { wanted_ = wanted; }
  ~InParts() { wanted_ = before_; }
  InParts(const InParts&) = delete;
  InParts& operator=(const InParts&) = delete;

  static bool is_wanted() { return wanted_; }

 private:
  static thread_local bool wanted_;
  const bool before_;
};

/// The file that an object is; null where it is something else.
const wire::FileBytes* file_of(nb::handle object);

/// Fetches a part of a file that is read in parts, and lets other threads run, if this one keeps them from that.
void fetch(const wire::FileBytes& file, wire::FileBytes::Bytes part, bool is_digested = true);

/// What keeps the bytes of a file: also in a capsule, for a module that knows no class of this one.
using Memory = std::shared_ptr<const void>;
inline constexpr const char* memory_in_capsule = "jaxexp.memory";

inline Memory memory_of(nb::handle capsule) {
  const auto* const memory = static_cast<const Memory*>(PyCapsule_GetPointer(capsule.ptr(), memory_in_capsule));
  if (!memory) throw nb::python_error();
  return *memory;
}

/// What os.PathLike, str or bytes say. Throws python_error.
std::filesystem::path path_of(nb::handle path);

void define_file(nb::module_& m);

}  // namespace jaxexp::bindings

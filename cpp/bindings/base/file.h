// Files that C++ reads for Python.
#pragma once

#include <filesystem>

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

/// What os.PathLike, str or bytes say. Throws python_error.
std::filesystem::path path_of(nb::handle path);

void define_file(nb::module_& m);

}  // namespace jaxexp::bindings

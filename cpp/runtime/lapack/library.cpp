#include "runtime/lapack/library.h"

#include <array>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <mutex>

#include "jaxexp/run_error.h"
#include "runtime/lapack/lapack.h"

namespace jaxexp::runtime::lapack {
namespace {

using Reason = RunError::Reason;

constexpr const char* variable = "JAXEXP_LAPACK";

/// Of systems, with the names of their stable interfaces.
constexpr auto usual = std::to_array<const char*>({
#if defined(_WIN32)
    "libopenblas.dll",
    "openblas.dll",
    "liblapack.dll",
#elif defined(__APPLE__)
    "/System/Library/Frameworks/Accelerate.framework/Accelerate",
    "libopenblas.0.dylib",
    "liblapack.3.dylib",
#else
    "libopenblas.so.0",
    "liblapack.so.3",
    "libflexiblas.so.3",
#endif
});

/// What is before and behind the names of routines: compilers of Fortran add an underscore; the OpenBLAS of NumPy and
/// SciPy, and those with wide integers, more.
constexpr auto decorations = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"", "_"}, {"scipy_", "_"}, {"", "_64_"}, {"scipy_", "_64_"}, {"", ""}});

SharedLibrary opened(const std::filesystem::path& file) {
  std::string why;
  if (auto library = SharedLibrary::open(file, why)) return *library;
  throw RunError(Reason::argument, "the LAPACK " + file.string() + " cannot be loaded: " + why);
}

std::string decorated(std::string_view prefix, std::string_view routine, std::string_view suffix) {
  return std::string(prefix) + std::string(routine) + std::string(suffix);
}

std::mutex mutex;
std::atomic<const Library*> found = nullptr;  // is never freed, as handlers may run while the process exits

}  // namespace

Library::Library(const std::filesystem::path& file) : file_(file), library_(opened(file)) {
  constexpr std::string_view known = "dgetrf";  // every LAPACK has it
  void* routine = nullptr;
  std::string tried;
  for (const auto& [prefix, suffix] : decorations) {
    prefix_ = prefix, suffix_ = suffix;
    if ((routine = find(std::string(known)))) break;
    (tried += tried.empty() ? "" : ", ") += decorated(prefix, known, suffix);
  }
  if (!routine)
    throw RunError(Reason::argument,
                   file.string() + " is not a LAPACK: it does not have any of the functions " + tried);
  // For a matrix without elements, it sets its last argument to 0, as wide as its integers are.
  Int none = 0, one = 1, info = -1;
  double element = 0;
  Integers pivots(1);
  reinterpret_cast<void (*)(Int*, Int*, double*, Int*, void*, Int*)>(routine)(&none, &none, &element, &one,
                                                                              pivots.data(), &info);
  is_wide_ = info == 0;
}

void* Library::find(const std::string& routine) const {
  return library_.find(decorated(prefix_, routine, suffix_).c_str());
}

const Library& library() {
  assert(found);
  return *found;
}

void use(const std::filesystem::path& file) {
  const std::lock_guard lock(mutex);
  if (found && found.load()->file() != file)
    throw RunError(Reason::argument, "the LAPACK " + found.load()->file().string() +
                                         " is in use already: name another one before a function that calls LAPACK is "
                                         "loaded");
  if (!found) found = new Library(file);
}

std::string find() {
  const std::lock_guard lock(mutex);
  if (found) return {};
  if (const char* const named = std::getenv(variable)) {
    if (*named == '\0') return std::string("$") + variable + " says that none is to be used";
    found = new Library(named);
    return {};
  }
  std::string tried;
  for (const char* const file : usual) {
    std::string ignored;
    (tried += tried.empty() ? "" : ", ") += file;
    if (!SharedLibrary::open(file, ignored)) continue;
    try {
      found = new Library(file);
      return {};
    } catch (const RunError&) {  // a library of this name that is something else
    }
  }
  return "there is no " + tried;
}

}  // namespace jaxexp::runtime::lapack

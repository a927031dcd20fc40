#include "runtime/plugin/shared_library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace jaxexp::runtime {

#ifdef _WIN32

std::optional<SharedLibrary> SharedLibrary::open(const std::filesystem::path& file, std::string& why) {
  if (void* const handle = LoadLibraryW(file.c_str())) return SharedLibrary(handle);
  why = "error " + std::to_string(GetLastError());
  return std::nullopt;
}

void* SharedLibrary::find(const char* symbol) const {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), symbol));
}

#else

std::optional<SharedLibrary> SharedLibrary::open(const std::filesystem::path& file, std::string& why) {
  if (void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return SharedLibrary(handle);
  why = dlerror();
  return std::nullopt;
}

void* SharedLibrary::find(const char* symbol) const { return dlsym(handle_, symbol); }

#endif

}  // namespace jaxexp::runtime

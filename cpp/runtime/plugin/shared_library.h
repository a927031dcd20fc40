// Code that is loaded while the program runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace jaxexp::runtime {

/// A shared library. It is never unloaded: its threads, and destructors of its static objects, would run on without
/// code.
class SharedLibrary {
 public:
  /// Nothing where it cannot be loaded, and then `why`. A name without a folder is looked for where the system's are.
  static std::optional<SharedLibrary> open(const std::filesystem::path& file, std::string& why);

  /// Null where the library has no such symbol, nor one of those that it needs.
  void* find(const char* symbol) const;

 private:
  explicit SharedLibrary(void* handle) : handle_(handle) {}

  void* handle_;
};

}  // namespace jaxexp::runtime

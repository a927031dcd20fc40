// Code of a function that an earlier process compiled and kept in a file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "runtime/plugin/executable.h"
#include "wire/base/file_bytes.h"
#include "wire/compiled/records.h"

namespace jaxexp::runtime {

struct KeptCode {
  std::optional<Executable> executable;
  HloShardings shardings;  // of the executable
  std::string why_not;     // why there is no executable
};

/// The code in a file of executables for these conditions, the function first. Does not throw on what is in the file.
KeptCode find_code(std::shared_ptr<const Client> client, const wire::FileBytes& file, const wire::Entries& conditions);

/// Whether a file has code for just these conditions, as it was written.
bool has_code(const std::filesystem::path& path, const wire::Entries& conditions);

/// Adds code to a file of executables, or makes the file. Throws RunError, DeserializationError and std::system_error.
void keep_code(const Executable& executable, bool has_shardings, const wire::Entries& conditions,
               const std::filesystem::path& path);

}  // namespace jaxexp::runtime

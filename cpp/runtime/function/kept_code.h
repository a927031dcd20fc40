// Code of a function that an earlier process compiled and kept in a file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "runtime/plugin/executable.h"
#include "wire/base/file_bytes.h"
#include "wire/compiled/records.h"
#include "wire/compiled/store.h"

namespace jaxexp::runtime {

/// Where code of earlier processes is: either may be null.
struct CodeSources {
  std::shared_ptr<const wire::FileBytes> file;
  std::shared_ptr<const wire::Store> store;
};

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

/// Throws RunError where every user of the machine may write to the folder, and std::system_error.
std::shared_ptr<const wire::Store> store_in(const std::filesystem::path& folder, std::uint64_t max_bytes,
                                            const Client& client);

/// The code in a store for these conditions. Where another process is compiling it, waits up to ten minutes for that;
/// where there is none, `turn` says that this process compiles it. Does not throw on what is in the store.
KeptCode find_stored_code(std::shared_ptr<const Client> client, const wire::Store& store,
                          const wire::Entries& conditions, std::optional<wire::Store::Turn>& turn);

/// Adds code to a store. Why it could not be added, or nothing.
std::string store_code(const Executable& executable, bool has_shardings, const wire::Entries& conditions,
                       const wire::Store& store);

}  // namespace jaxexp::runtime

// Records that are added to a file of executables.
#pragma once

#include <filesystem>
#include <span>

#include "wire/compiled/records.h"

namespace jaxexp::wire {

struct FileIsLocked {};

/// Adds a record behind the last complete one, or makes the file; an empty one is as good as none. If the process dies
/// meanwhile, the file has the records that it had. While another process writes to it, waits up to half a minute.
/// Throws Error where the file is something else or damaged, FileIsLocked where it waited in vain, and
/// std::system_error.
void append_executable(const std::filesystem::path& path, const Entries& conditions, const Entries& call,
                       std::span<const std::uint8_t> code);

}  // namespace jaxexp::wire

// Files of executables: which code there is, and what has to be the same where it is used (schema/executables.fbs).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wire/base/digest.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::wire {

using Entries = std::vector<std::pair<std::string, std::string>>;

struct ExecutableRecord {
  Entries conditions, call;
  std::uint64_t position, size;  // of the code in the file
  Digest digest;                 // of the code, which is compared when it is read
};

struct ExecutableRecords {
  std::vector<ExecutableRecord> records;
  std::uint64_t end;  // of the last complete record: where the next one goes
};

/// The complete records from `position` on: all of them, or those behind the `end` of an earlier reading. The code is
/// not read. Others may add records meanwhile, which are found or not. Takes time in proportion to the size of what is
/// read. Throws Error, and std::system_error where the file cannot be read.
ExecutableRecords read_executables(const FileBytes& file, std::uint64_t position = 0);

/// The code of a record. Throws Error where it is damaged, and std::system_error.
std::vector<std::uint8_t> read_code(const FileBytes& file, const ExecutableRecord& record);

std::string executables_head();

/// A record up to its code, for which `size` and `digest` are given. Behind the code come `executable_padding` zeros.
/// Throws Error where the description is larger than a file may have.
std::string executable_head(const Entries& conditions, const Entries& call, std::uint64_t size, const Digest& digest);
std::size_t executable_padding(std::uint64_t size);

struct FileIsLocked {};

/// Adds a record behind the last complete one, or makes the file; an empty one is as good as none. If the process dies
/// meanwhile, the file has the records that it had. While another process writes to it, waits up to half a minute.
/// Throws Error where the file is something else or damaged, FileIsLocked where it waited in vain, and
/// std::system_error.
void append_executable(const std::filesystem::path& path, const Entries& conditions, const Entries& call,
                       std::span<const std::uint8_t> code);

}  // namespace jaxexp::wire

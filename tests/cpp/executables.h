// Files of executables, taken apart by their layout (schema/executables.fbs) and made right again.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace jaxexp::tests {

/// Whether the bytes begin as a file of executables does.
bool are_executables(std::span<const std::uint8_t> bytes);

/// A part of a record: where it is, and how many bytes it has.
struct RecordPlace {
  std::size_t at, description_size, code_at, code_size;
};

/// The records that follow each other, as their heads say, as far as they are inside the bytes.
std::vector<RecordPlace> records_of(std::span<const std::uint8_t> bytes);

/// Makes marks and digests right, of the file and of all records.
void seal_executables(std::vector<std::uint8_t>& bytes);

}  // namespace jaxexp::tests

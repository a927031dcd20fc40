// What every reader of MLIR bytecode begins with: the version and the producer of a module, and its sections.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "wire/base/error.h"
#include "wire/bytecode/cursor.h"

namespace jaxexp::wire {

/// Sections by their numbers (https://mlir.llvm.org/docs/BytecodeFormat/).
enum class Section : unsigned {
  strings,
  dialects,
  entries,
  entry_offsets,
  code,
  resources,
  resource_offsets,
  dialect_versions,
  properties,
};
inline constexpr std::size_t section_kinds = 9;

/// From these versions of the format on, ...
namespace since {
inline constexpr std::uint64_t versioned_dialects = 1;  // a dialect may state a version
inline constexpr std::uint64_t isolated_sections = 2;   // regions that use nothing from outside have a section each
inline constexpr std::uint64_t use_lists = 3;           // the order of a value's uses may be stated
inline constexpr std::uint64_t counted_operations = 4;  // the number of operations stands before their names,
inline constexpr std::uint64_t optional_locations = 4;  // and block arguments have a location only where it is known
inline constexpr std::uint64_t native_properties = 5;   // operations have properties, and their names a flag
}  // namespace since
inline constexpr std::uint64_t newest_bytecode = 6;

/// Whether bytes begin as MLIR bytecode does.
bool begins_like_bytecode(std::span<const std::uint8_t> bytes);

/// Keeps views into the module.
class Sections {
 public:
  /// Reads what stands in front of the sections. Throws Error.
  Sections(std::span<const std::uint8_t> module, const Path& where);

  std::uint64_t version() const { return version_; }
  std::string_view producer() const { return producer_; }
  /// How many bytes stand in front of the sections.
  std::size_t head_size() const { return head_size_; }

  /// Finds all sections. Throws Error where one is there twice, or of a kind that this version does not have.
  void find();

  const std::optional<Cursor>& operator[](Section kind) const { return sections_[static_cast<std::size_t>(kind)]; }
  /// The same; throws Error where there is none.
  const Cursor& needed(Section kind) const;

 private:
  Cursor rest_;
  std::uint64_t version_;
  std::string_view producer_;
  std::size_t head_size_;
  std::array<std::optional<Cursor>, section_kinds> sections_;
};

}  // namespace jaxexp::wire

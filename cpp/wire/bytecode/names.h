// The tables of a module in MLIR bytecode that have names in them: strings, dialects, and kinds of operations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/bytecode/sections.h"

namespace jaxexp::wire {

/// Views into the module.
struct Names {
  struct Operation {
    std::uint32_t dialect, name;  // numbers of a dialect and of a string
    bool registered;              // its properties are in the section for that
  };

  /// Throws Error where a table is not there, or damaged, or where a few bytes name more than any module has.
  explicit Names(const Sections& sections);

  std::string_view dialect_of(const Operation& operation) const { return dialects[operation.dialect]; }
  std::string_view name_of(const Operation& operation) const { return strings[operation.name]; }
  /// As in "vhlo.add_v1".
  std::string full_name_of(const Operation& operation) const {
    return std::string(dialect_of(operation)) + '.' + std::string(name_of(operation));
  }

  std::vector<std::string_view> strings, dialects;
  std::vector<Operation> operations;

 private:
  void read_strings(Cursor section);
  void read_dialects(Cursor section, std::uint64_t version);
  std::uint32_t string(const Cursor& at, std::uint64_t index) const {
    return static_cast<std::uint32_t>(at.indexed(index, strings.size(), "strings"));
  }
};

}  // namespace jaxexp::wire

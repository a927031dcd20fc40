// The tables of a module in MLIR bytecode that have names in them: strings, dialects, and kinds of operations.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "wire/bytecode/sections.h"

namespace jaxexp::wire {

/// Views into the module.
struct Names {
  struct Operation {
    std::string_view dialect, name;
    bool registered;  // its properties are in the section for that
  };

  /// Throws Error where a table is not there, or damaged.
  explicit Names(const Sections& sections);

  std::string_view string(const Cursor& at, std::uint64_t index) const {
    return strings[at.indexed(index, strings.size(), "strings")];
  }

  std::vector<std::string_view> strings, dialects;
  std::vector<Operation> operations;

 private:
  void read_strings(Cursor section);
  void read_dialects(Cursor section, std::uint64_t version);
};

}  // namespace jaxexp::wire

// Where the attributes and the types of a module are in MLIR bytecode.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "wire/bytecode/cursor.h"

namespace jaxexp::wire {

struct Entries {
  struct Entry {
    Cursor data;
    std::string_view dialect;
    bool encoded;  // by its dialect, which begins with the number of the kind; otherwise it is a text
  };

  /// `entries` and `offsets` are the sections of these names. Throws Error where sizes and numbers do not fit.
  Entries(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects);

  std::vector<Entry> all;  // the attributes, with the types behind them
  std::uint64_t attributes;

 private:
  void add(Cursor& offsets, Cursor& entries, std::uint64_t count, std::span<const std::string_view> dialects);
};

}  // namespace jaxexp::wire

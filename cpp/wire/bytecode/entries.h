// Where the attributes and the types of a module are in MLIR bytecode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "wire/bytecode/cursor.h"

namespace jaxexp::wire {

/// The attributes of a module, with the types behind them.
class Entries {
 public:
  /// `entries` and `offsets` are the sections of these names; `dialects` has to stay. Throws Error where sizes and
  /// numbers do not fit.
  Entries(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects);

  std::size_t size() const { return all_.size(); }
  std::uint64_t attributes() const { return attributes_; }
  Cursor data(std::size_t i) const { return section_.slice(all_[i].begin, all_[i].size); }
  std::string_view dialect(std::size_t i) const { return dialects_[all_[i].dialect]; }
  std::uint32_t dialect_number(std::size_t i) const { return all_[i].dialect; }
  /// Whether an entry is encoded by its dialect, and begins with the number of the kind. Otherwise it is a text.
  bool encoded(std::size_t i) const { return all_[i].encoded; }

 private:
  /// Small, as there may be one for two bytes of the module.
  struct Entry {
    std::uint32_t begin, size, dialect : 31, encoded : 1;
  };

  void add(Cursor& offsets, std::uint64_t count);

  Cursor section_;
  std::span<const std::string_view> dialects_;
  std::uint64_t attributes_;
  std::size_t end_ = 0;  // of the last entry
  std::vector<Entry> all_;
};

}  // namespace jaxexp::wire

// A module taken apart, and put together again with other code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/refine/code.h"
#include "runtime/refine/tables.h"
#include "wire/base/error.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::refine {

class Parts {
 public:
  /// The bytes have to stay. Throws wire::Error with the path `where` where the module is damaged, and RunError where
  /// it is in a form that is not known here.
  Parts(std::span<const std::uint8_t> module, const wire::Path& where);

  Tables& tables() { return tables_; }
  /// Throws RunError for code that jumps between blocks.
  Code code() const;

  /// The module with this at its top, and with what was added to the tables.
  std::vector<std::uint8_t> written(const Block& top) const;

 private:
  std::span<const std::uint8_t> module_;
  const wire::Path& where_;
  wire::Sections sections_;
  Tables tables_;
};

}  // namespace jaxexp::runtime::refine

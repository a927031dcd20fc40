// The calls of cases, made again on a plugin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "jaxexp/runtime.h"
#include "runtime/cases/compared.h"

namespace jaxexp::runtime {

/// How a case went.
struct Checked {
  std::string name;
  std::size_t vjp_order;
  const Cases::Recording* recorded;
  bool has_trace;
  std::vector<Compared> results = {};
  std::string error = {};  // why there are no results

  Verdict verdict() const;
  std::string str() const;
  /// What differs, a line for each result; what rounding may change; and why no operation is named.
  std::vector<std::string> lines() const;
};

struct CheckOptions {
  std::optional<Case::Tolerance> tolerance = {};  // in place of what the cases say
  /// What the random arguments of a case may take: a few bytes describe any number of them.
  std::uint64_t max_drawn_bytes = std::uint64_t{1} << 32;
  bool stable = false;  // as LoadOptions have it
};

/// Checks the cases of a function, some of which may have arrays in files beside `file`. What goes wrong with a case is
/// its error.
std::vector<Checked> checked(const Function& function, const Cases& cases, const std::filesystem::path& file,
                             const CheckOptions& options);

}  // namespace jaxexp::runtime

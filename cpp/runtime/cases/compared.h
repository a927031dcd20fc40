// How a result differs from the recorded one. python/jaxexp/_api/cases/comparing.py has the same rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "jaxexp/array.h"
#include "jaxexp/artifact.h"

namespace jaxexp::runtime {

/// From good to bad: that of several results is the worst.
enum class Verdict : std::uint8_t { equal, close, differs, failed };

/// Who gave a tolerance.
enum class Whose : std::uint8_t { check, recording, case_, dtype };

struct Compared {
  std::string path, dtype;
  std::vector<std::int64_t> shape;  // as recorded; a random key has one dimension more
  Verdict verdict;
  std::string why = {};  // what differs if dtypes or shapes do
  Whose whose = Whose::dtype;
  std::size_t size = 0;
  std::size_t differing = 0;  // more than is allowed
  std::size_t unequal = 0;
  std::size_t nans = 0, infinities = 0;  // on one side only
  double max_absolute = 0, max_relative = 0;
  std::uint64_t max_ulps = 0;
  std::size_t worst = 0;  // which number
  double allowed = 0;     // there
  std::string recorded = {}, found = {};

  std::string str() const;
};

/// Compares what was `found` with what was `recorded` as a value of this dtype. `tolerance` may be null, for the
/// default of the dtype. Throws RunError where the numbers could not be computed.
Compared compared(std::string path, std::string dtype, const Array& recorded, const Array& found,
                  const Case::Tolerance* tolerance, Whose whose);

}  // namespace jaxexp::runtime

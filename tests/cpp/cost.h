// What a run may cost: CPU time of its thread, and memory at its peak, by the size of its input.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxexp::tests {

/// Measures from its construction on. Only one at a time.
class Cost {
 public:
  Cost();
  ~Cost();
  Cost(const Cost&) = delete;
  Cost& operator=(const Cost&) = delete;

  struct Found {
    double seconds;
    std::size_t bytes;  // at the peak, beside what was there before
  };
  Found found() const;

 private:
  double start_;
};

/// The larger one of the two ratios of what was found to what is promised (docs/guide/security.md). Sanitizers slow the
/// code down, and each target reads its input several times: both are allowed for.
double cost_ratio(const Cost::Found& found, std::size_t input_size);

}  // namespace jaxexp::tests

// What a call spends its time on.
#pragma once

#include <chrono>

namespace jaxexp {

struct CallTimes {
  std::chrono::nanoseconds prepare;  // arguments are checked, and put on the devices
  std::chrono::nanoseconds start;  // the plugin takes the call; where it computes small functions at once, this has all
  std::chrono::nanoseconds wait;   // until all results are there
};

}  // namespace jaxexp

// Numbers from bytes that need not be aligned.
#pragma once

#include <cstring>

namespace jaxexp::wire {

template <class Number>
Number load(const void* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

}  // namespace jaxexp::wire

// What the programs here call functions with.
#pragma once

#include <jaxexp/runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace jaxexp::bench {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "this does not hold: %s\n", what);
  std::abort();
}

/// Arrays of ones, as these are.
inline std::vector<Array> arrays_like(const std::vector<Value>& values) {
  std::vector<Array> arrays;
  for (const Value& value : values) {
    std::vector<std::int64_t> shape;
    std::size_t size = 1;
    for (const std::string_view dim : value.shape) {
      shape.push_back(std::stoll(std::string(dim)));
      size *= static_cast<std::size_t>(shape.back());
    }
    arrays.emplace_back(shape, std::vector<float>(size, 1));
  }
  return arrays;
}

}  // namespace jaxexp::bench

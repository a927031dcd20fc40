// What JAX calls the dtypes of an artifact.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace jaxexp::wire {

/// By the number of its kind; "dtype 40" for one that was registered by its number.
inline std::string dtype_name(int kind) {
  static constexpr std::array names = {"bool",          "int8",
                                       "int16",         "int32",
                                       "int64",         "uint8",
                                       "uint16",        "uint32",
                                       "uint64",        "float16",
                                       "float32",       "float64",
                                       "complex64",     "complex128",
                                       "bfloat16",      "int4",
                                       "uint4",         "float8_e4m3b11fnuz",
                                       "float8_e4m3fn", "float8_e4m3fnuz",
                                       "float8_e5m2",   "float8_e5m2fnuz",
                                       "float0",        "float8_e4m3",
                                       "float8_e3m4",   "float8_e8m0fnu",
                                       "float4_e2m1fn", "key<fry>",
                                       "key<rbg>",      "key<urbg>"};
  const bool known = kind >= 0 && static_cast<std::size_t>(kind) < names.size();
  return known ? names[static_cast<std::size_t>(kind)] : "dtype " + std::to_string(kind);
}

}  // namespace jaxexp::wire

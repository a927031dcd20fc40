// The dtypes of JAX, in one table: what artifacts, modules and files call each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace jaxexp::wire {

struct Dtype {
  enum class Numbers : std::uint8_t { truth_values, integers, unsigned_integers, reals, complexes, keys, nothing };
  static constexpr int none = -1;

  std::string_view name;  // JAX's: NumPy's, or that of ml_dtypes
  int kind;               // its number in artifacts (schema/exported.fbs)
  int vhlo;               // the number of its type in VHLO's bytecode
  Numbers numbers;
  unsigned bits;
  std::string_view in_files;  // as files of tensors have it: docs/formats/weights.md
  std::string_view npy = {};  // as NumPy's files have it; empty for dtypes that they hold as bytes

  /// In host memory, where numbers of less than a byte have a byte each, and a key the numbers that it consists of.
  constexpr std::size_t bytes() const { return (bits + 7) / 8; }
  constexpr bool is_part_of_a_byte() const { return 1 < bits && bits < 8; }
  constexpr bool is_integer() const { return numbers == Numbers::integers || numbers == Numbers::unsigned_integers; }
};

/// Those of artifacts by their numbers, and what only modules have behind them.
inline constexpr auto dtypes = std::to_array<Dtype>({
    {"bool", 0, 0, Dtype::Numbers::truth_values, 1, "BOOL", "|b1"},
    {"int8", 1, 11, Dtype::Numbers::integers, 8, "I8", "|i1"},
    {"int16", 2, 12, Dtype::Numbers::integers, 16, "I16", "<i2"},
    {"int32", 3, 13, Dtype::Numbers::integers, 32, "I32", "<i4"},
    {"int64", 4, 14, Dtype::Numbers::integers, 64, "I64", "<i8"},
    {"uint8", 5, 16, Dtype::Numbers::unsigned_integers, 8, "U8", "|u1"},
    {"uint16", 6, 17, Dtype::Numbers::unsigned_integers, 16, "U16", "<u2"},
    {"uint32", 7, 18, Dtype::Numbers::unsigned_integers, 32, "U32", "<u4"},
    {"uint64", 8, 19, Dtype::Numbers::unsigned_integers, 64, "U64", "<u8"},
    {"float16", 9, 3, Dtype::Numbers::reals, 16, "F16", "<f2"},
    {"float32", 10, 4, Dtype::Numbers::reals, 32, "F32", "<f4"},
    {"float64", 11, 5, Dtype::Numbers::reals, 64, "F64", "<f8"},
    {"complex64", 12, Dtype::none, Dtype::Numbers::complexes, 64, "C64", "<c8"},
    {"complex128", 13, Dtype::none, Dtype::Numbers::complexes, 128, "F64", "<c16"},  // with a last dimension of 2
    {"bfloat16", 14, 2, Dtype::Numbers::reals, 16, "BF16"},
    {"int4", 15, 10, Dtype::Numbers::integers, 4, "I8"},
    {"uint4", 16, 15, Dtype::Numbers::unsigned_integers, 4, "U8"},
    {"float8_e4m3b11fnuz", 17, 29, Dtype::Numbers::reals, 8, "U8"},
    {"float8_e4m3fn", 18, 6, Dtype::Numbers::reals, 8, "F8_E4M3"},
    {"float8_e4m3fnuz", 19, 27, Dtype::Numbers::reals, 8, "F8_E4M3FNUZ"},
    {"float8_e5m2", 20, 7, Dtype::Numbers::reals, 8, "F8_E5M2"},
    {"float8_e5m2fnuz", 21, 28, Dtype::Numbers::reals, 8, "F8_E5M2FNUZ"},
    {"float0", 22, Dtype::none, Dtype::Numbers::nothing, 0, ""},
    {"float8_e4m3", 23, 35, Dtype::Numbers::reals, 8, "U8"},
    {"float8_e3m4", 24, 36, Dtype::Numbers::reals, 8, "U8"},
    {"float8_e8m0fnu", 25, 40, Dtype::Numbers::reals, 8, "F8_E8M0"},
    {"float4_e2m1fn", 26, 37, Dtype::Numbers::reals, 4, "F4"},
    {"key<fry>", 27, Dtype::none, Dtype::Numbers::keys, 64, ""},
    {"key<rbg>", 28, Dtype::none, Dtype::Numbers::keys, 128, ""},
    {"key<urbg>", 29, Dtype::none, Dtype::Numbers::keys, 128, ""},
    {"int2", Dtype::none, 31, Dtype::Numbers::integers, 2, "I8"},
    {"uint2", Dtype::none, 32, Dtype::Numbers::unsigned_integers, 2, "U8"},
});

/// The dtype of which a field, such as `&Dtype::name`, has a value; null where there is none.
template <class Field, class Value>
constexpr const Dtype* dtype_with(Field Dtype::* field, const Value& value) {
  const auto found = std::ranges::find(dtypes, value, field);
  return found == dtypes.end() ? nullptr : &*found;
}

/// By the number of its type in VHLO.
constexpr const Dtype* dtype_of_vhlo(std::uint64_t type) {
  return type < 64 ? dtype_with(&Dtype::vhlo, static_cast<int>(type)) : nullptr;
}

/// By the number of its kind; "dtype 40" for one that was registered by its number.
inline std::string dtype_name(int kind) {
  const Dtype* const known = kind < 0 ? nullptr : dtype_with(&Dtype::kind, kind);
  return known ? std::string(known->name) : "dtype " + std::to_string(kind);
}

}  // namespace jaxexp::wire

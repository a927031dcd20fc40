// The C API's and DLPack's numbers for the dtypes of wire/base/dtype.h.
#include "runtime/plugin/element_type.h"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <iterator>

#include "wire/base/dtype.h"

namespace jaxexp::runtime {
namespace {

constexpr ElementType known(std::string_view name, PJRT_Buffer_Type type, std::uint8_t dlpack_code) {
  const wire::Dtype& dtype = *wire::dtype_with(&wire::Dtype::name, name);
  const unsigned dlpack_bits = dlpack_code == kDLBool ? 8 : dtype.bits;
  return {dtype.name,
          type,
          dtype.bytes(),
          dtype.in_files,
          dtype.is_part_of_a_byte(),
          dlpack_code,
          static_cast<std::uint8_t>(dlpack_bits)};
}

constexpr ElementType types[] = {
    known("bool", PJRT_Buffer_Type_PRED, kDLBool),
    known("int2", PJRT_Buffer_Type_S2, kDLInt),
    known("int4", PJRT_Buffer_Type_S4, kDLInt),
    known("int8", PJRT_Buffer_Type_S8, kDLInt),
    known("int16", PJRT_Buffer_Type_S16, kDLInt),
    known("int32", PJRT_Buffer_Type_S32, kDLInt),
    known("int64", PJRT_Buffer_Type_S64, kDLInt),
    known("uint2", PJRT_Buffer_Type_U2, kDLUInt),
    known("uint4", PJRT_Buffer_Type_U4, kDLUInt),
    known("uint8", PJRT_Buffer_Type_U8, kDLUInt),
    known("uint16", PJRT_Buffer_Type_U16, kDLUInt),
    known("uint32", PJRT_Buffer_Type_U32, kDLUInt),
    known("uint64", PJRT_Buffer_Type_U64, kDLUInt),
    known("float16", PJRT_Buffer_Type_F16, kDLFloat),
    known("float32", PJRT_Buffer_Type_F32, kDLFloat),
    known("float64", PJRT_Buffer_Type_F64, kDLFloat),
    known("bfloat16", PJRT_Buffer_Type_BF16, kDLBfloat),
    known("complex64", PJRT_Buffer_Type_C64, kDLComplex),
    known("complex128", PJRT_Buffer_Type_C128, kDLComplex),
    known("float8_e5m2", PJRT_Buffer_Type_F8E5M2, kDLFloat8_e5m2),
    known("float8_e4m3fn", PJRT_Buffer_Type_F8E4M3FN, kDLFloat8_e4m3fn),
    known("float8_e4m3b11fnuz", PJRT_Buffer_Type_F8E4M3B11FNUZ, kDLFloat8_e4m3b11fnuz),
    known("float8_e5m2fnuz", PJRT_Buffer_Type_F8E5M2FNUZ, kDLFloat8_e5m2fnuz),
    known("float8_e4m3fnuz", PJRT_Buffer_Type_F8E4M3FNUZ, kDLFloat8_e4m3fnuz),
    known("float8_e4m3", PJRT_Buffer_Type_F8E4M3, kDLFloat8_e4m3),
    known("float8_e3m4", PJRT_Buffer_Type_F8E3M4, kDLFloat8_e3m4),
    known("float8_e8m0fnu", PJRT_Buffer_Type_F8E8M0FNU, kDLFloat8_e8m0fnu),
    known("float4_e2m1fn", PJRT_Buffer_Type_F4E2M1FN, kDLFloat4_e2m1fn),
};

}  // namespace

const ElementType* element_type(std::string_view name) {
  const auto* const found = std::ranges::find(types, name, &ElementType::name);
  return found == std::end(types) ? nullptr : found;
}

const ElementType* element_type(std::uint8_t dlpack_code, std::uint8_t dlpack_bits) {
  const auto* const found = std::ranges::find_if(types, [&](const ElementType& type) {
    return type.dlpack_code == dlpack_code && type.dlpack_bits == dlpack_bits;
  });
  return found == std::end(types) ? nullptr : found;
}

}  // namespace jaxexp::runtime

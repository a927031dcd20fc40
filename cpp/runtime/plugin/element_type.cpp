// Names as ml_dtypes and NumPy have them, beside the C API's and those of files of tensors.
#include "runtime/plugin/element_type.h"

#include <algorithm>

namespace jaxexp::runtime {
namespace {

constexpr ElementType types[] = {
    {"bool", PJRT_Buffer_Type_PRED, 1, "BOOL"},
    {"int2", PJRT_Buffer_Type_S2, 1, "I8"},
    {"int4", PJRT_Buffer_Type_S4, 1, "I8"},
    {"int8", PJRT_Buffer_Type_S8, 1, "I8"},
    {"int16", PJRT_Buffer_Type_S16, 2, "I16"},
    {"int32", PJRT_Buffer_Type_S32, 4, "I32"},
    {"int64", PJRT_Buffer_Type_S64, 8, "I64"},
    {"uint2", PJRT_Buffer_Type_U2, 1, "U8"},
    {"uint4", PJRT_Buffer_Type_U4, 1, "U8"},
    {"uint8", PJRT_Buffer_Type_U8, 1, "U8"},
    {"uint16", PJRT_Buffer_Type_U16, 2, "U16"},
    {"uint32", PJRT_Buffer_Type_U32, 4, "U32"},
    {"uint64", PJRT_Buffer_Type_U64, 8, "U64"},
    {"float16", PJRT_Buffer_Type_F16, 2, "F16"},
    {"float32", PJRT_Buffer_Type_F32, 4, "F32"},
    {"float64", PJRT_Buffer_Type_F64, 8, "F64"},
    {"bfloat16", PJRT_Buffer_Type_BF16, 2, "BF16"},
    {"complex64", PJRT_Buffer_Type_C64, 8, "C64"},
    {"complex128", PJRT_Buffer_Type_C128, 16, "F64"},  // with a last dimension of 2
    {"float8_e5m2", PJRT_Buffer_Type_F8E5M2, 1, "F8_E5M2"},
    {"float8_e4m3fn", PJRT_Buffer_Type_F8E4M3FN, 1, "F8_E4M3"},
    {"float8_e4m3b11fnuz", PJRT_Buffer_Type_F8E4M3B11FNUZ, 1, "U8"},
    {"float8_e5m2fnuz", PJRT_Buffer_Type_F8E5M2FNUZ, 1, "F8_E5M2FNUZ"},
    {"float8_e4m3fnuz", PJRT_Buffer_Type_F8E4M3FNUZ, 1, "F8_E4M3FNUZ"},
    {"float8_e4m3", PJRT_Buffer_Type_F8E4M3, 1, "U8"},
    {"float8_e3m4", PJRT_Buffer_Type_F8E3M4, 1, "U8"},
    {"float8_e8m0fnu", PJRT_Buffer_Type_F8E8M0FNU, 1, "F8_E8M0"},
    {"float4_e2m1fn", PJRT_Buffer_Type_F4E2M1FN, 1, "F4"},
};

}  // namespace

bool ElementType::is_part_of_a_byte() const {
  constexpr PJRT_Buffer_Type small[] = {PJRT_Buffer_Type_S2, PJRT_Buffer_Type_S4, PJRT_Buffer_Type_U2,
                                        PJRT_Buffer_Type_U4, PJRT_Buffer_Type_F4E2M1FN};
  return std::ranges::find(small, type) != std::end(small);
}

const ElementType* element_type(std::string_view name) {
  const auto* const found = std::ranges::find(types, name, &ElementType::name);
  return found == std::end(types) ? nullptr : found;
}

}  // namespace jaxexp::runtime

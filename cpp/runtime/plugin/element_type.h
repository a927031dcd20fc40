// The dtypes that a plugin computes with, by the names that JAX gives them.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace jaxexp::runtime {

struct ElementType {
  std::string_view name;
  PJRT_Buffer_Type type;
  /// In host memory, where numbers of less than a byte have a byte each.
  std::size_t bytes;
  /// What a file of tensors has for it: docs/formats/weights.md has the table.
  std::string_view in_files;

  /// Whether a number has less than a byte: devices may have several ones in a byte.
  bool is_part_of_a_byte;
  std::uint8_t dlpack_code, dlpack_bits;
};

/// Null where no plugin knows such a dtype.
const ElementType* element_type(std::string_view name);
const ElementType* element_type(std::uint8_t dlpack_code, std::uint8_t dlpack_bits);

}  // namespace jaxexp::runtime

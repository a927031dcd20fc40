// Makes the digests of a damaged artifact right again, so that what lies behind them is looked at.
#pragma once

#include <cstdint>
#include <vector>

namespace jaxexp::tests {

/// Writes mark, sizes and digests for an artifact whose trailer has `content_size` bytes in front of the footer, and
/// whose metadata are `metadata_size` bytes; the modules' digests too, where the trailer can be read. Whether there is
/// room for all that.
bool seal(std::vector<std::uint8_t>& bytes, std::size_t metadata_size, std::size_t content_size);

/// The two sizes as a footer has them, or where that cannot be, some that can.
struct Sizes {
  std::size_t metadata, content;
};
Sizes sizes_of(const std::vector<std::uint8_t>& bytes);

}  // namespace jaxexp::tests

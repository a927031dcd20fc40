// Reads everything in a verified artifact: every byte of every field of every table, its VJPs included.
#pragma once

#include <algorithm>
#include <cstdint>

#include "exported_generated.h"

namespace jaxexp::tests {

/// What an offset leads to.
inline const std::uint8_t* led_to(const std::uint8_t* at) {
  return at + flatbuffers::ReadScalar<flatbuffers::uoffset_t>(at);
}

/// The values of a field: those of a vector, or one.
struct Values {
  const std::uint8_t* data;
  std::size_t count;
  bool is_vector;
};

/// Calls `visit(slot, type of an element, type table of a table, Values)` for each field of a verified table that is
/// there.
template <class Visit>
void each_field(const std::uint8_t* table, const flatbuffers::TypeTable& type, const Visit& visit) {
  for (std::size_t slot = 0; slot < type.num_elems; ++slot) {
    const auto offset = flatbuffers::FieldIndexToOffset(static_cast<flatbuffers::voffset_t>(slot));
    const std::uint8_t* at = reinterpret_cast<const flatbuffers::Table*>(table)->GetAddressOf(offset);
    if (!at) continue;
    const flatbuffers::TypeCode& code = type.type_codes[slot];
    const auto element = static_cast<flatbuffers::ElementaryType>(code.base_type);
    const auto* inner = element == flatbuffers::ET_SEQUENCE ? type.type_refs[code.sequence_ref]() : nullptr;
    if (!code.is_repeating) {
      visit(slot, element, inner, Values{at, 1, false});
    } else {
      const auto* vector = reinterpret_cast<const flatbuffers::Vector<std::uint8_t>*>(led_to(at));
      visit(slot, element, inner, Values{vector->Data(), vector->size(), true});
    }
  }
}

/// What a part of an artifact says, and how much it is for a reader that follows shared parts each time.
struct Content {
  static constexpr std::uint64_t most = std::uint64_t{1} << 40;  // sums stop growing here

  std::uint64_t digest = 0xCBF29CE484222325u;
  std::uint64_t tables = 0, elements = 0, bytes = 0;

  void mix(std::uint64_t value) { digest = (digest ^ value) * 0x9E3779B97F4A7C15u, digest ^= digest >> 29; }

  void add(const Content& part) {
    mix(part.digest);
    tables = std::min(tables + part.tables, most);
    elements = std::min(elements + part.elements, most);
    bytes = std::min(bytes + part.bytes, most);
  }
};

Content view(const wire::schema::Exported& root);

/// Limits grow with the buffer, and what is written again is smaller where its source held equal tables twice: these
/// contents are within the limits of any buffer. The limit of trees counts a node up to four times.
inline bool is_within_any_limit(const Content& content) {
  return content.tables < 1u << 14 && content.elements < 1u << 18 && content.bytes < 1u << 24;
}

}  // namespace jaxexp::tests

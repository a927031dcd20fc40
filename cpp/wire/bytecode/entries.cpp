// Entries have no places of their own: each begins where the one before it ends.
#include "wire/bytecode/entries.h"

#include <string>

namespace jaxexp::wire {

Entries::Entries(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects)
    : attributes(offsets.number()) {
  const std::uint64_t types = offsets.number();
  offsets.counted(attributes, "attributes");
  offsets.counted(types, "types");
  all.reserve(attributes + types);
  add(offsets, entries, attributes, dialects);
  add(offsets, entries, types, dialects);
}

void Entries::add(Cursor& offsets, Cursor& entries, std::uint64_t count, std::span<const std::string_view> dialects) {
  while (count > 0) {
    const std::string_view dialect = dialects[offsets.index(dialects.size(), "dialects")];
    const std::uint64_t group = offsets.number();
    if (group == 0 || group > count)
      offsets.refuse("a group of " + std::to_string(group) + " entries where " + std::to_string(count) + " are left");
    for (std::uint64_t i = 0; i < group; ++i) {
      const std::uint64_t size = offsets.number();
      all.push_back({entries.part(size >> 1), dialect, (size & 1) != 0});
    }
    count -= group;
  }
}

}  // namespace jaxexp::wire

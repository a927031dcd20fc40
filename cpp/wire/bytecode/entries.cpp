// Entries have no places of their own: each begins where the one before it ends.
#include "wire/bytecode/entries.h"

#include <string>

namespace jaxexp::wire {

Entries::Entries(Cursor entries, Cursor offsets, std::span<const std::string_view> dialects)
    : section_(entries), dialects_(dialects), attributes_(offsets.number()) {
  const std::uint64_t types = offsets.number();
  offsets.counted(attributes_, "attributes");
  offsets.counted(types, "types");
  section_.counted(attributes_ + types, "attributes and types");
  all_.reserve(attributes_ + types);
  add(offsets, attributes_);
  add(offsets, types);
}

void Entries::add(Cursor& offsets, std::uint64_t count) {
  while (count > 0) {
    const auto dialect = static_cast<std::uint32_t>(offsets.index(dialects_.size(), "dialects"));
    const std::uint64_t group = offsets.number();
    if (group == 0 || group > count)
      offsets.refuse("a group of " + std::to_string(group) + " entries where " + std::to_string(count) + " are left");
    for (std::uint64_t i = 0; i < group; ++i) {
      const std::uint64_t coded = offsets.number(), size = coded >> 1;
      if (size == 0) offsets.refuse("an attribute or type of no bytes");
      if (size > section_.left() - end_) offsets.refuse("an attribute or type beyond the end of its section");
      all_.push_back({static_cast<std::uint32_t>(end_), static_cast<std::uint32_t>(size), dialect, (coded & 1) != 0});
      end_ += size;
    }
    count -= group;
  }
}

}  // namespace jaxexp::wire

// Advice to the system: it changes no byte, so nobody has to know whether it was taken.
#include "wire/base/memory.h"

#ifndef _WIN32
#include <sys/mman.h>
#endif

namespace jaxexp::wire {

std::span<std::uint8_t> whole_units(std::span<std::uint8_t> memory, std::size_t unit) {
  const std::size_t skipped = (unit - reinterpret_cast<std::uintptr_t>(memory.data()) % unit) % unit;
  if (memory.size() < skipped + unit) return {};
  return memory.subspan(skipped, (memory.size() - skipped) / unit * unit);
}

void in_large_pages([[maybe_unused]] std::span<std::uint8_t> memory) {
#ifdef MADV_HUGEPAGE
  if (const auto part = whole_units(memory, std::size_t{1} << 21); !part.empty())
    madvise(part.data(), part.size(), MADV_HUGEPAGE);
#endif
}

}  // namespace jaxexp::wire

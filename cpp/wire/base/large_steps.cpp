// Advice to the system. Whether it takes it changes no byte, so errors are no errors.
#include "wire/base/large_steps.h"

#include <cstddef>

#ifndef _WIN32
#include <sys/mman.h>
#endif

namespace jaxexp::wire {

#if defined(MADV_HUGEPAGE) || defined(MADV_POPULATE_WRITE)

namespace {

/// The part of memory that begins and ends at multiples of `unit`; empty where there is none.
std::span<std::uint8_t> whole_units(std::span<std::uint8_t> memory, std::size_t unit) {
  const std::size_t skipped = (unit - reinterpret_cast<std::uintptr_t>(memory.data()) % unit) % unit;
  if (memory.size() < skipped + unit) return {};
  return memory.subspan(skipped, (memory.size() - skipped) / unit * unit);
}

}  // namespace

#endif

void in_large_steps([[maybe_unused]] std::span<std::uint8_t> memory) {
#ifdef MADV_HUGEPAGE
  if (const auto part = whole_units(memory, std::size_t{1} << 21); !part.empty())
    madvise(part.data(), part.size(), MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE
  constexpr std::size_t page = 4096, worth_a_call = 32 * page;
  if (const auto part = whole_units(memory, page); part.size() >= worth_a_call)
    madvise(part.data(), part.size(), MADV_POPULATE_WRITE);
#endif
}

}  // namespace jaxexp::wire

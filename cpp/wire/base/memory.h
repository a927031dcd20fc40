// New memory that is about to be written as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace jaxexp::wire {

/// The part of memory that begins and ends at multiples of `unit`; empty where there is none.
std::span<std::uint8_t> whole_units(std::span<std::uint8_t> memory, std::size_t unit);

/// Lets memory that is not there yet come in large pages, where the system has them: in small ones it takes longer to
/// come than to be written. What is there stays.
void in_large_pages(std::span<std::uint8_t> memory);

/// Plugins for the CPU use arrays in place that are aligned as tensors in files of jaxexp are. Throws std::bad_alloc.
inline std::shared_ptr<std::uint8_t> aligned_memory(std::size_t size) {
  constexpr std::align_val_t alignment{64};
  return {static_cast<std::uint8_t*>(::operator new(size, alignment)),
          [](std::uint8_t* bytes) { ::operator delete(bytes, alignment); }};
}

}  // namespace jaxexp::wire

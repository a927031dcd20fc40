// Memory for files that were read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace jaxexp::wire {

/// Plugins for the CPU use arrays in place that are aligned as tensors in files of jaxexp are. Throws std::bad_alloc.
inline std::shared_ptr<std::uint8_t> aligned_memory(std::size_t size) {
  constexpr std::align_val_t alignment{64};
  return {static_cast<std::uint8_t*>(::operator new(size, alignment)),
          [](std::uint8_t* bytes) { ::operator delete(bytes, alignment); }};
}

}  // namespace jaxexp::wire

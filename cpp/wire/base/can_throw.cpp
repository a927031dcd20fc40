// What a thread frees, it gets again: glibc keeps small blocks for the thread that freed them.
#include "wire/base/can_throw.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>

namespace jaxexp::wire {
namespace {

struct Free {
  void operator()(void* block) const { std::free(block); }
};

}  // namespace

bool can_throw() noexcept {
  // Not to be optimized away.
  void* (*volatile const allocate)(std::size_t) = std::malloc;
  // The C++ library keeps some dozen bytes for each thread.
  constexpr std::size_t step = 16;
  std::array<std::unique_ptr<void, Free>, 16> blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].reset(allocate((i + 1) * step));
    if (!blocks[i]) return false;
  }
  blocks = {};
  return std::uncaught_exceptions() == 0;  // looks at the thread's exceptions, which makes room for them
}

}  // namespace jaxexp::wire

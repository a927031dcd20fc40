// Memory is counted where AddressSanitizer allocates it; without AddressSanitizer it is not known.
#include "cost.h"

#include <time.h>

#include <algorithm>
#include <atomic>

#ifdef __has_feature  // Clang's way to say it
#if __has_feature(address_sanitizer)
#define JAXEXP_COUNTS_MEMORY 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define JAXEXP_COUNTS_MEMORY 1
#endif
#ifdef JAXEXP_COUNTS_MEMORY
// Of sanitizer/allocator_interface.h, which GCC does not install.
extern "C" {
std::size_t __sanitizer_get_allocated_size(const volatile void* memory);
int __sanitizer_install_malloc_and_free_hooks(void (*on_allocation)(const volatile void*, std::size_t),
                                              void (*on_release)(const volatile void*));
}
#endif

namespace jaxexp::tests {
namespace {

std::atomic<std::size_t> current{0}, peak{0};
std::atomic<bool> counting{false};

#ifdef JAXEXP_COUNTS_MEMORY
void on_allocation(const volatile void* memory, std::size_t) {
  if (!counting) return;
  const std::size_t now = current += __sanitizer_get_allocated_size(memory);
  if (now > peak) peak = now;
}

void on_release(const volatile void* memory) {
  if (!counting || !memory) return;
  const std::size_t size = __sanitizer_get_allocated_size(memory);
  current -= std::min<std::size_t>(current, size);
}

const bool installed = __sanitizer_install_malloc_and_free_hooks(on_allocation, on_release) != 0;
#endif

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Cost::Cost() : start_(cpu_seconds()) {
  current = peak = 0;
  counting = true;
}

Cost::~Cost() { counting = false; }

Cost::Found Cost::found() const { return {cpu_seconds() - start_, peak}; }

double cost_ratio(const Cost::Found& found, std::size_t input_size) {
  constexpr double slower = 8, more = 4;  // sanitizers, and readings of one input by a target
  const auto size = static_cast<double>(input_size);
  const double seconds = slower * (1 + 2e-6 * size), bytes = more * ((64 << 20) + 64 * size);
  return std::max(found.seconds / seconds, static_cast<double>(found.bytes) / bytes);
}

}  // namespace jaxexp::tests

// Loaded in front of the C library (LD_PRELOAD, glibc): makes allocations of the native module fail, one or many of
// them. Nothing else fails: neither what Python or a library allocates for itself, while the native module waits, nor
// what the dynamic linker does, which ends the process without memory.
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool has(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    return begin <= at && at < end;
  }
};

Range native, linker;
std::array<Range, 8> others;  // functions that run whatever they are given
std::size_t other_count = 0;
std::atomic<long> counted{0}, first{LONG_MAX}, last{LONG_MAX};
std::atomic<bool> armed{false};

/// Whether the native module itself wants memory: it is the first on the stack that does not only serve others.
bool is_counted() {
  std::array<void*, 64> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    const void* const frame = frames[static_cast<std::size_t>(i)];
    if (linker.has(frame)) return false;
    if (std::any_of(others.begin(), others.begin() + other_count, [&](const Range& one) { return one.has(frame); }))
      return false;
    if (native.has(frame)) return true;
  }
  return false;
}

bool fails() {
  static thread_local bool is_looking __attribute__((tls_model("initial-exec"))) = false;
  if (!armed.load(std::memory_order_relaxed) || is_looking) return false;
  is_looking = true;
  const bool counts = is_counted();
  is_looking = false;
  if (!counts) return false;
  const long number = counted.fetch_add(1);
  if (number < first || number > last) return false;
  errno = ENOMEM;
  return true;
}

int find(dl_phdr_info* info, std::size_t, void*) {
  Range range;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    range.begin = range.begin == 0 ? begin : std::min(range.begin, begin);
    range.end = std::max(range.end, begin + part.p_memsz);
  }
  if (std::strstr(info->dlpi_name, "/_native.")) native = range;
  if (std::strstr(info->dlpi_name, "/ld-linux")) linker = range;
  return 0;
}

}  // namespace

extern "C" {

/// Whether the native module and the linker were found.
int failing_malloc_begin() {
  dl_iterate_phdr(find, nullptr);
  std::array<void*, 4> frames;
  backtrace(frames.data(), static_cast<int>(frames.size()));  // loads what it needs
  return native.begin != 0 && linker.begin != 0;
}

/// What is allocated below this function, before the native module comes, does not count.
int failing_malloc_leave_out(const void* function) {
  Dl_info info;
  void* found = nullptr;
  if (!dladdr1(function, &info, &found, RTLD_DL_SYMENT) || !found) return 0;
  const auto* const symbol = static_cast<const ElfW(Sym)*>(found);
  const auto begin = reinterpret_cast<std::uintptr_t>(info.dli_saddr);
  others.at(other_count++) = {begin, begin + symbol->st_size};
  return 1;
}

/// Lets so many allocations succeed from now on, and then so many fail.
void failing_malloc_arm(long successes, long failures) {
  counted = 0;
  first = successes;
  last = failures < LONG_MAX - successes ? successes + failures - 1 : LONG_MAX;
  armed = true;
}

/// How many there were.
long failing_malloc_disarm() {
  armed = false;
  return counted;
}

void* malloc(std::size_t size) { return fails() ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) { return fails() ? nullptr : __libc_calloc(count, size); }
void* realloc(void* memory, std::size_t size) { return fails() ? nullptr : __libc_realloc(memory, size); }
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  void* const made = fails() ? nullptr : __libc_memalign(alignment, size);
  if (!made) return ENOMEM;
  *memory = made;
  return 0;
}

}  // extern "C"

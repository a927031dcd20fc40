// Files through POSIX where there is POSIX, through the standard library elsewhere.
#include "wire/base/file_bytes.h"

#include <cerrno>
#include <system_error>

#ifdef _WIN32
#include <fstream>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#endif

namespace jaxexp::wire {

#ifdef _WIN32

void FileBytes::Release::operator()(std::uint8_t* bytes) const { delete[] bytes; }

FileBytes::FileBytes(const std::filesystem::path& path, bool, std::uint64_t most) {
  const std::uint64_t size = std::filesystem::file_size(path);
  if (size > most) throw TooLarge{size};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::system_error(EACCES, std::generic_category());
  auto memory = std::make_unique_for_overwrite<std::uint8_t[]>(size);
  file.read(reinterpret_cast<char*>(memory.get()), static_cast<std::streamsize>(size));
  if (file.bad()) throw std::system_error(EIO, std::generic_category());
  bytes_ = {memory.get(), static_cast<std::size_t>(file.gcount())};
  memory_.reset(memory.release());
}

#else

namespace {

[[noreturn]] void fail(int error = errno) { throw std::system_error(error, std::generic_category()); }

class Descriptor {
 public:
  /// Without waiting for the other end of a pipe.
  explicit Descriptor(const char* path) {
    do number_ = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (number_ < 0 && errno == EINTR);
    if (number_ < 0) fail();
  }
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return number_; }

 private:
  int number_;
};

/// The pages of a large file may be mapped as huge pages, of which metadata and trailer need a few kB. The module,
/// between this many bytes at either end, may lie in huge pages: a call reads all of it.
[[maybe_unused]] constexpr std::size_t end_in_small_pages = std::size_t{1} << 18;

void* map(int descriptor, std::size_t size) {
  void* const start = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (start == MAP_FAILED) return nullptr;  // a file system that maps none, or too many mappings: it can be read
#ifdef MADV_NOHUGEPAGE
  if (size > 2 * end_in_small_pages) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t last = (size - end_in_small_pages) / page * page;
    madvise(start, end_in_small_pages, MADV_NOHUGEPAGE);  // refused by a kernel without huge pages
    madvise(static_cast<std::uint8_t*>(start) + last, size - last, MADV_NOHUGEPAGE);
  }
#endif
  return start;
}

std::size_t read_all(int descriptor, std::uint8_t* target, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    constexpr std::size_t largest = std::size_t{1} << 30;  // some systems take no more at once
    const ssize_t count = read(descriptor, target + done, std::min(size - done, largest));
    if (count == 0) break;  // it has become shorter
    if (count > 0)
      done += static_cast<std::size_t>(count);
    else if (errno != EINTR)
      fail();
  }
  return done;
}

}  // namespace

void FileBytes::Release::operator()(std::uint8_t* bytes) const {
  if (mapped != 0)
    munmap(bytes, mapped);
  else
    delete[] bytes;
}

FileBytes::FileBytes(const std::filesystem::path& path, bool may_map, std::uint64_t most) {
  const Descriptor file(path.c_str());
  struct stat status;
  if (fstat(file, &status) != 0) fail();
  if (S_ISDIR(status.st_mode)) fail(EISDIR);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > most) throw TooLarge{size};
  if (may_map && size >= worth_mapping) {
    if (void* const start = map(file, size)) {
      memory_ = {static_cast<std::uint8_t*>(start), Release(size)};
      bytes_ = {memory_.get(), size};
      return;
    }
  }
  auto memory = std::make_unique_for_overwrite<std::uint8_t[]>(size);
  bytes_ = {memory.get(), read_all(file, memory.get(), size)};
  memory_.reset(memory.release());
}

#endif

}  // namespace jaxexp::wire

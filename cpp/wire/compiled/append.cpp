// The file is locked as Python locks it (jaxexp/_io/lock.py).
#include "wire/compiled/append.h"

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "wire/base/error.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#endif

namespace jaxexp::wire {

#ifdef _WIN32

void append_executable(const std::filesystem::path&, const Entries&, const Entries&, std::span<const std::uint8_t>) {
  throw std::system_error(std::make_error_code(std::errc::function_not_supported));
}

#else

namespace {

[[noreturn]] void fail() { throw std::system_error(errno, std::generic_category()); }

class LockedFile {
 public:
  explicit LockedFile(const std::filesystem::path& path)
      : number_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (number_ < 0) fail();
    if (flock(number_, LOCK_EX | LOCK_NB) == 0) return;
    const int error = errno;
    close(number_);
    if (error == EWOULDBLOCK) throw FileIsLocked{};
    throw std::system_error(error, std::generic_category());
  }
  ~LockedFile() { close(number_); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  std::uint64_t size() const {
    const off_t end = lseek(number_, 0, SEEK_END);
    if (end < 0) fail();
    return static_cast<std::uint64_t>(end);
  }

  /// What is there from `position` on goes first.
  void begin_at(std::uint64_t position) const {
    if (ftruncate(number_, static_cast<off_t>(position)) != 0 ||
        lseek(number_, static_cast<off_t>(position), SEEK_SET) < 0)
      fail();
  }

  void write(const void* data, std::size_t size) const {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t count = ::write(number_, at, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      at += count;
      size -= static_cast<std::size_t>(count);
    }
  }
  void write(std::string_view bytes) const { write(bytes.data(), bytes.size()); }

 private:
  const int number_;
};

}  // namespace

void append_executable(const std::filesystem::path& path, const Entries& conditions, const Entries& call,
                       std::span<const std::uint8_t> code) {
  const std::string head = executable_head(conditions, call, code.size(), digest(code));
  const LockedFile file(path);
  if (file.size() == 0) {
    file.write(executables_head());
  } else {
    const FileBytes found(path, FileBytes::Reading::in_parts, ~std::uint64_t{0});
    file.begin_at(read_executables(found).end);
  }
  file.write(head);
  file.write(code.data(), code.size());
  file.write(std::string(executable_padding(code.size()), '\0'));
}

#endif

}  // namespace jaxexp::wire

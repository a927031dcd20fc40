// The file is locked as Python locks it (jaxexp/_kernel/io/lock.py).
#include "wire/compiled/append.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "wire/base/error.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

/// A file for reading and writing.
class File {
 public:
  File(const std::filesystem::path& path, int how)
      : path_(path), number_(open(path.c_str(), O_RDWR | O_CLOEXEC | how, 0666)) {
    if (number_ < 0) fail();
  }
  ~File() { close(number_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Throws FileIsLocked where another process has the lock, and keeps it.
  void lock() const {
    using std::chrono::steady_clock;
    constexpr std::chrono::seconds patience(30);
    for (const auto start = steady_clock::now(); flock(number_, LOCK_EX | LOCK_NB) != 0;) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail();
      if (steady_clock::now() - start > patience) throw FileIsLocked{};
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  /// Whether it is still the one of this name.
  bool is_named() const {
    struct stat own, named;
    if (fstat(number_, &own) != 0) fail();
    return stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  }

  /// What is there from `position` on goes first.
  void begin_at(std::uint64_t position) const {
    if (ftruncate(number_, static_cast<off_t>(position)) != 0 ||
        lseek(number_, static_cast<off_t>(position), SEEK_SET) < 0)
      fail();
  }

  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(number_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }

 private:
  const std::filesystem::path path_;
  const int number_;
};

/// A name for a file that nobody else has, and that goes when this does.
class TemporaryName {
 public:
  explicit TemporaryName(const std::filesystem::path& beside) {
    std::random_device random;
    std::array<char, 32> name;
    std::snprintf(name.data(), name.size(), ".%08x%08x.tmp", random(), random());
    path_ = beside.parent_path() / name.data();
  }
  ~TemporaryName() { unlink(path_.c_str()); }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Makes the file with all that it has at once. Whether there was none.
bool make(const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
  const TemporaryName temporary(path);
  const File file(temporary.path(), O_CREAT | O_EXCL);
  for (const std::string_view part : parts) file.write(part);
  if (link(temporary.path().c_str(), path.c_str()) == 0) return true;
  if (errno == EEXIST) return false;
  // A file system without links.
  if (access(path.c_str(), F_OK) == 0) return false;
  if (rename(temporary.path().c_str(), path.c_str()) != 0) fail();
  return true;
}

/// Adds a record to a file, which gets the head of one first if it is empty.
void add(const std::filesystem::path& path, std::string_view file_head, std::initializer_list<std::string_view> parts) {
  for (;;) {
    const File file(path, 0);
    file.lock();
    if (!file.is_named()) continue;  // another file took its place meanwhile
    const FileBytes found(path, FileBytes::Reading::in_parts, ~std::uint64_t{0});
    const bool is_new = found.bytes().empty();  // as whoever takes a name for a temporary file makes one
    file.begin_at(is_new ? 0 : read_executables(found).end);
    if (is_new) file.write(file_head);
    for (const std::string_view part : parts) file.write(part);
    return;
  }
}

}  // namespace

void append_executable(const std::filesystem::path& path, const Entries& conditions, const Entries& call,
                       std::span<const std::uint8_t> code) {
  const std::string head = executable_head(conditions, call, code.size(), digest(code));
  const std::string file_head = executables_head(), zeros(executable_padding(code.size()), '\0');
  const std::string_view bytes(reinterpret_cast<const char*>(code.data()), code.size());
  if (!std::filesystem::exists(path) && make(path, {file_head, head, bytes, zeros})) return;
  add(path, file_head, {head, bytes, zeros});
}

#endif

}  // namespace jaxexp::wire

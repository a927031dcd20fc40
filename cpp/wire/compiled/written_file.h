// Files that several processes write, on systems that have POSIX's locks.
#pragma once

#ifndef _WIN32

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>

namespace jaxexp::wire {

[[noreturn]] inline void throw_errno() { throw std::system_error(errno, std::generic_category()); }

/// A file for reading and writing. Its methods throw std::system_error.
class WrittenFile {
 public:
  WrittenFile(const std::filesystem::path& path, int how)
      : path_(path), number_(open(path.c_str(), O_RDWR | O_CLOEXEC | how, 0666)) {
    if (number_ < 0) throw_errno();
  }
  ~WrittenFile() { close(number_); }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Whether it is locked now, until it is closed; otherwise, something else has it locked.
  bool lock() const {
    if (flock(number_, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) throw_errno();
    return false;
  }

  /// Whether it is still the one of this name.
  bool is_named() const {
    struct stat own, named;
    if (fstat(number_, &own) != 0) throw_errno();
    return stat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
  }

  /// What is there from `position` on goes first.
  void begin_at(std::uint64_t position) const {
    if (ftruncate(number_, static_cast<off_t>(position)) != 0 ||
        lseek(number_, static_cast<off_t>(position), SEEK_SET) < 0)
      throw_errno();
  }

  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(number_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno();
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
  explicit TemporaryName(const std::filesystem::path& folder) {
    std::random_device random;
    std::array<char, 32> name;
    std::snprintf(name.data(), name.size(), ".%08x%08x.tmp", random(), random());
    path_ = folder / name.data();
  }
  ~TemporaryName() { unlink(path_.c_str()); }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace jaxexp::wire

#endif

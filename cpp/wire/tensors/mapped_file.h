// A file as memory that nobody can write to through it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace jaxexp::wire {

/// Of a mapped file, what is not used is not read. The process ends with SIGBUS where somebody shortens the file while
/// it is mapped, and sees what somebody writes to it. A file that is read, all of it at once, stays as it was. (Where
/// there is no POSIX, every file is read.)
class MappedFile {
 public:
  enum class How : std::uint8_t { mapped, read };

  /// Opens the file that a user named, wherever its links lead. Throws std::system_error, and Error where it is no
  /// regular file, or becomes shorter while it is read.
  static MappedFile named(const std::filesystem::path& path, How how = How::mapped);

  /// Opens a file of tensors whose name stands in another file: it has to be in the same folder. (If that file is a
  /// link, as in a cache of downloads, it may also be in the folder that the link leads to.) Throws
  /// std::system_error where it is not there, and Error where the name leads elsewhere, by itself or by a link. A file
  /// of another size than this one is mapped, and not read: the caller refuses it.
  static MappedFile beside(const std::filesystem::path& path, std::string_view name, How how,
                           std::optional<std::uint64_t> size);

  std::span<const std::uint8_t> bytes() const { return {memory_.get(), size_}; }
  std::shared_ptr<const void> owner() const { return memory_; }

 private:
  MappedFile(const std::filesystem::path& path, int flags, How how, std::optional<std::uint64_t> size);

  std::shared_ptr<const std::uint8_t> memory_;
  std::size_t size_ = 0;
};

/// Refuses what is not the name of a file of tensors in the same folder, on any system. Throws Error.
void check_tensors_name(std::string_view name);

/// Where a file of this content is while it is saved, or after a process died while it saved; `content` in hexadecimal.
std::string second_name(std::string_view name, std::string_view content);

}  // namespace jaxexp::wire

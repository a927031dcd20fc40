// The bytes of a file: read at once where it is small, in parts when they are needed where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace jaxexp::wire {

/// A file is never mapped: whoever shortens a mapped file ends the process that reads it, and whoever writes to it
/// changes what was checked already. Parts that were fetched stay as they are, whatever happens to the file.
class FileBytes {
 public:
  using Bytes = std::span<const std::uint8_t>;

  enum class Reading : std::uint8_t {
    at_once,
    large_in_parts,
    in_parts,  // of a file that others add to, over what was not finished: all of it is compared with digests
  };

  /// What is large. Reading a smaller file takes little time beside everything else that a load does.
  static constexpr std::size_t worth_parts = std::size_t{1} << 20;

  struct TooLarge {
    std::uint64_t size;
  };

  /// Throws std::system_error, with an errno, where the file cannot be read; TooLarge where it has more than `most`
  /// bytes, and then nothing is read.
  FileBytes(const std::filesystem::path& path, Reading how, std::uint64_t most);

  /// The file of an artifact, whose offsets lead to 2 GiB. Throws Error, too, where it has more than 4 GiB and not more
  /// than `most`, and then nothing is read.
  static FileBytes of_artifact(const std::filesystem::path& path, Reading how, std::uint64_t most = UINT64_MAX);

  ~FileBytes();
  FileBytes(FileBytes&&) noexcept;
  FileBytes& operator=(FileBytes&&) noexcept;

  /// All of them; what was not fetched is zeros. They stay where they are if this is moved.
  Bytes bytes() const { return bytes_; }

  /// What keeps them after this is gone.
  std::shared_ptr<const void> memory() const { return memory_; }

  bool is_in_parts() const { return parts_ != nullptr; }
  bool has(Bytes part) const {
    return part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size();
  }

  /// Makes a part of `bytes()` what the file has there; another part than of these is left alone. `is_digested` says
  /// that its bytes are compared with a digest later. Throws Error where the file has changed since it was opened, and
  /// std::system_error where it cannot be read. May be called by several threads at once.
  void fetch(Bytes part, bool is_digested = true) const;

  /// Whether the file was written to or touched since it was opened.
  bool is_changed() const;

  /// The size that the file has now: that of `bytes()` where it is read at once.
  std::uint64_t size_now() const;

  /// Copies a range of the file, and keeps nothing of it. Otherwise as `fetch`.
  void read(std::uint64_t position, std::span<std::uint8_t> target, bool is_digested = false) const;

 private:
  struct Parts;

  std::shared_ptr<std::uint8_t> memory_;
  Bytes bytes_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace jaxexp::wire

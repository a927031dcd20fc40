// The bytes of a file: read where it is small, mapped where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace jaxexp::wire {

class FileBytes {
 public:
  /// Files of at least this size are mapped, where the system can; mapping a smaller one takes longer than reading it.
  static constexpr std::size_t worth_mapping = std::size_t{1} << 17;

  struct TooLarge {
    std::uint64_t size;
  };

  /// Throws std::system_error, with an errno, where the file cannot be read; TooLarge where it has more than `most`
  /// bytes, and then nothing is read.
  FileBytes(const std::filesystem::path& path, bool may_map, std::uint64_t most);

  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  struct Release {
    Release() : mapped(0) {}
    explicit Release(std::size_t mapped) : mapped(mapped) {}
    void operator()(std::uint8_t* bytes) const;
    std::size_t mapped;  // how many bytes; 0 where they were allocated
  };

  std::unique_ptr<std::uint8_t[], Release> memory_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace jaxexp::wire

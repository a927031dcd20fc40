// Names in files are hostile until they are checked here; docs/formats/weights.md has the rules.
#include "wire/tensors/mapped_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "wire/base/error.h"

#ifdef _WIN32
#include <limits>

#include "wire/base/file_bytes.h"
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/base/memory.h"
#endif

namespace jaxexp::wire {
namespace {

constexpr std::string_view suffix = ".safetensors";
constexpr std::size_t longest_name = 255;

[[noreturn]] void not_regular() { throw Error({}, "a regular file", "something else"); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Follows all links. Throws std::system_error, and Error where there are too many.
std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code error;
  auto real = std::filesystem::canonical(path, error);
  if (error == std::errc::too_many_symbolic_link_levels) throw Error({}, "a regular file", "a link");
  if (error) throw file_error(error, path);
  return real;
}

}  // namespace

#ifdef _WIN32

constexpr int follow = 0, no_follow = 0;

MappedFile::MappedFile(const std::filesystem::path& path, int, How, std::optional<std::uint64_t>) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw file_error(ENOENT, path);
  if (!std::filesystem::is_regular_file(status)) not_regular();
  auto file =
      std::make_shared<const FileBytes>(path, FileBytes::Reading::at_once, std::numeric_limits<std::uint64_t>::max());
  const auto bytes = file->bytes();
  memory_ = {std::move(file), bytes.data()};
  size_ = bytes.size();
}

#else

namespace {

constexpr int follow = 0, no_follow = O_NOFOLLOW;

struct Closing {
  ~Closing() { close(descriptor); }
  int descriptor;
};

using Memory = std::shared_ptr<const std::uint8_t>;

Memory mapped(int descriptor, std::size_t size, const std::filesystem::path& path) {
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) throw file_error(errno, path);
  return {static_cast<const std::uint8_t*>(memory),
          [size](const std::uint8_t* bytes) { munmap(const_cast<std::uint8_t*>(bytes), size); }};
}

Memory read_whole(int descriptor, std::size_t size, const std::filesystem::path& path) {
  const std::shared_ptr<std::uint8_t> memory = aligned_memory(size);
  for (std::size_t done = 0; done < size;) {
    constexpr std::size_t largest = std::size_t{1} << 30;  // some systems take no more at once
    const ssize_t count = read(descriptor, memory.get() + done, std::min(size - done, largest));
    if (count == 0)
      throw Error({}, std::to_string(size) + " bytes", std::to_string(done) + ": the file was shortened meanwhile");
    if (count > 0)
      done += static_cast<std::size_t>(count);
    else if (errno != EINTR)
      throw file_error(errno, path);
  }
  return memory;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, int flags, How how, std::optional<std::uint64_t> size) {
  int descriptor;
  // Without waiting: a named pipe would wait for somebody who writes.
  do descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ELOOP) throw Error({}, "a regular file", "a link");
    throw file_error(errno, path);
  }
  const Closing closing{descriptor};
  struct stat found;
  if (fstat(descriptor, &found) != 0) throw file_error(errno, path);
  if (!S_ISREG(found.st_mode)) not_regular();
  size_ = static_cast<std::size_t>(found.st_size);
  const bool reads = how == How::read && size.value_or(size_) == size_;
  if (size_ > 0) memory_ = (reads ? read_whole : mapped)(descriptor, size_, path);
}

#endif

MappedFile MappedFile::named(const std::filesystem::path& path, How how) { return {path, follow, how, std::nullopt}; }

MappedFile MappedFile::beside(const std::filesystem::path& path, std::string_view name, How how,
                              std::optional<std::uint64_t> size) {
  check_tensors_name(name);
  const std::filesystem::path folder = folder_of(path);
  std::error_code error;  // the file itself need not be there
  const std::array folders = {real_path(folder), folder_of(std::filesystem::weakly_canonical(path, error))};
  const std::u8string utf8(name.begin(), name.end());
  const std::filesystem::path real = real_path(folder / std::filesystem::path(utf8));
  if (std::ranges::find(folders, real.parent_path()) == folders.end())
    throw Error({}, "'" + escaped(name) + "' in the folder '" + folders[0].string() + "'",
                "a link to '" + real.string() + "'");
  // What the name led to is no link any more, unless somebody put one there since.
  return {real, no_follow, how, size};
}

void check_tensors_name(std::string_view name) {
  const bool is_plain = name.find_first_of("/\\") == name.npos && name.find(':') != 1 && escaped(name) == name;
  if (is_plain && name.ends_with(suffix) && name.size() <= longest_name) return;
  throw Error({}, "the name of a .safetensors file in the same folder", "'" + escaped(shortened(name, 300)) + "'");
}

std::string second_name(std::string_view name, std::string_view content) {
  if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return '.' + std::string(name) + '.' + std::string(content) + std::string(suffix);
}

}  // namespace jaxexp::wire

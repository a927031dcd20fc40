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
#endif

namespace jaxexp::wire {
namespace {

constexpr std::string_view suffix = ".safetensors";
constexpr std::size_t longest_name = 255;

[[noreturn]] void fail(int error, const std::filesystem::path& path) {
  throw std::system_error(error, std::generic_category(), path.string());
}

[[noreturn]] void not_regular() { throw Error({}, "a regular file", "something else"); }

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

#ifdef _WIN32

constexpr int follow = 0, no_follow = 0;

MappedFile::MappedFile(const std::filesystem::path& path, int) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) fail(ENOENT, path);
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

/// Closes a descriptor.
struct Closing {
  ~Closing() { close(descriptor); }
  int descriptor;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, int flags) {
  int descriptor;
  // Without waiting: a named pipe would wait for somebody who writes.
  do descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ELOOP) throw Error({}, "a regular file", "a link");
    fail(errno, path);
  }
  const Closing closing{descriptor};
  struct stat found;
  if (fstat(descriptor, &found) != 0) fail(errno, path);
  if (!S_ISREG(found.st_mode)) not_regular();
  size_ = static_cast<std::size_t>(found.st_size);
  if (size_ == 0) return;
  void* const memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) fail(errno, path);
  memory_ = {static_cast<const std::uint8_t*>(memory),
             [size = size_](const std::uint8_t* mapped) { munmap(const_cast<std::uint8_t*>(mapped), size); }};
}

#endif

MappedFile MappedFile::named(const std::filesystem::path& path) { return {path, follow}; }

MappedFile MappedFile::beside(const std::filesystem::path& path, std::string_view name) {
  check_tensors_name(name);
  const std::filesystem::path folder = folder_of(path);
  const std::array folders = {std::filesystem::canonical(folder), folder_of(std::filesystem::weakly_canonical(path))};
  const std::u8string utf8(name.begin(), name.end());
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(folder / std::filesystem::path(utf8), error);
  if (error == std::errc::too_many_symbolic_link_levels) throw Error({}, "a regular file", "a link");
  if (error) throw std::system_error(error, (folder / std::filesystem::path(utf8)).string());
  if (std::ranges::find(folders, real.parent_path()) == folders.end())
    throw Error({}, "'" + escaped(name) + "' in the folder '" + folders[0].string() + "'",
                "a link to '" + real.string() + "'");
  // What the name led to is no link any more, unless somebody put one there since.
  return {real, no_follow};
}

void check_tensors_name(std::string_view name) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7F; };
  const bool is_plain =
      name.find_first_of("/\\") == name.npos && name.find(':') != 1 && std::ranges::none_of(name, is_control);
  if (is_plain && name.ends_with(suffix) && name.size() <= longest_name) return;
  throw Error({}, "the name of a .safetensors file in the same folder", "'" + escaped(shortened(name, 300)) + "'");
}

std::string second_name(std::string_view name, std::string_view content) {
  if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return '.' + std::string(name) + '.' + std::string(content) + std::string(suffix);
}

}  // namespace jaxexp::wire

// Files through POSIX where there is POSIX, through the standard library elsewhere, where all are read at once.
#include "wire/base/file_bytes.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "wire/base/error.h"
#include "wire/base/memory.h"

#ifdef _WIN32
#include <fstream>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#endif

namespace jaxexp::wire {

#ifdef _WIN32

struct FileBytes::Parts {};

FileBytes::FileBytes(const std::filesystem::path& path, Reading, std::uint64_t most) {
  const std::uint64_t size = std::filesystem::file_size(path);
  if (size > most) throw TooLarge{size};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::system_error(EACCES, std::generic_category());
  memory_ = aligned_memory(size);
  file.read(reinterpret_cast<char*>(memory_.get()), static_cast<std::streamsize>(size));
  if (file.bad()) throw std::system_error(EIO, std::generic_category());
  bytes_ = {memory_.get(), static_cast<std::size_t>(file.gcount())};
}

void FileBytes::fetch(Bytes, bool) const {}

bool FileBytes::is_changed() const { return false; }

std::uint64_t FileBytes::size_now() const { return bytes_.size(); }

void FileBytes::read(std::uint64_t position, std::span<std::uint8_t> target, bool) const {
  std::ranges::copy(bytes_.subspan(static_cast<std::size_t>(position), target.size()), target.begin());
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
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  operator int() const { return number_; }

 private:
  int number_;
};

/// Half of the files that the process may have open are for others.
class Turn {
 public:
  static std::optional<Turn> take() {
    rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
    if (taken.fetch_add(1) < limit.rlim_cur / 2) return Turn();
    --taken;
    return std::nullopt;
  }
  ~Turn() {
    if (mine_) --taken;
  }
  Turn(Turn&& other) noexcept : mine_(std::exchange(other.mine_, false)) {}
  Turn& operator=(Turn&&) = delete;

 private:
  Turn() = default;
  inline static std::atomic<rlim_t> taken = 0;
  bool mine_ = true;
};

/// How many bytes were read: fewer where the file ends. A file that is no regular one may have no positions: without
/// one, all of it is read.
std::size_t read_at(int descriptor, std::optional<std::uint64_t> position, std::span<std::uint8_t> target) {
  std::size_t done = 0;
  while (done < target.size()) {
    constexpr std::size_t largest = std::size_t{1} << 30;  // some systems take no more at once
    std::uint8_t* const rest = target.data() + done;
    const std::size_t most = std::min(target.size() - done, largest);
    const ssize_t count =
        position ? pread(descriptor, rest, most, static_cast<off_t>(*position + done)) : ::read(descriptor, rest, most);
    if (count == 0) break;
    if (count > 0)
      done += static_cast<std::size_t>(count);
    else if (errno != EINTR)
      fail();
  }
  return done;
}

/// Makes memory that was never written to be there, in a few large steps, where the system can: otherwise it comes a
/// page at a time, which takes longer than reading the file.
void in_large_steps(std::span<std::uint8_t> memory) {
  in_large_pages(memory);
#ifdef MADV_POPULATE_WRITE
  constexpr std::size_t page = 4096, worth_a_call = 32 * page;
  if (const auto part = whole_units(memory, page); part.size() >= worth_a_call)
    madvise(part.data(), part.size(), MADV_POPULATE_WRITE);
#endif
}

using Time = std::pair<std::int64_t, std::int64_t>;

#ifdef __APPLE__
Time written(const struct stat& status) { return {status.st_mtimespec.tv_sec, status.st_mtimespec.tv_nsec}; }
Time touched(const struct stat& status) { return {status.st_ctimespec.tv_sec, status.st_ctimespec.tv_nsec}; }
#else
Time written(const struct stat& status) { return {status.st_mtim.tv_sec, status.st_mtim.tv_nsec}; }
Time touched(const struct stat& status) { return {status.st_ctim.tv_sec, status.st_ctim.tv_nsec}; }
#endif

}  // namespace

struct FileBytes::Parts {
  Parts(Descriptor file, Turn turn, const struct stat& status, std::string name, bool may_grow)
      : file(std::move(file)), turn(std::move(turn)), status(status), name(std::move(name)), may_grow(may_grow) {}

  struct stat now() const {
    struct stat now;
    if (fstat(file, &now) != 0) fail();
    return now;
  }

  /// Where a digest tells whether bytes are the same, a new name or new permissions, which also touch the file, are no
  /// change. Where nothing tells it, a lost name is none: the file was replaced by another one.
  void check(bool is_digested) const {
    if (may_grow) return;
    const struct stat now = this->now();
    if (now.st_size != status.st_size || written(now) != written(status)) changed();
    if (!is_digested && touched(now) != touched(status) && now.st_nlink == status.st_nlink) changed();
  }

  [[noreturn]] void changed() const {
    throw Error({}, "the file as it was when it was opened",
                "'" + escaped(shortened(name, 200)) + "' has been changed since: load it again");
  }

  const Descriptor file;
  const Turn turn;
  const struct stat status;
  const std::string name;
  const bool may_grow;
  std::mutex mutex;
  std::map<std::size_t, std::size_t> fetched;  // where parts begin and end, none next to another
};

FileBytes::FileBytes(const std::filesystem::path& path, Reading how, std::uint64_t most) {
  Descriptor file(path.c_str());
  struct stat status;
  if (fstat(file, &status) != 0) fail();
  if (S_ISDIR(status.st_mode)) fail(EISDIR);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > most) throw TooLarge{size};
  if (size != 0 && S_ISREG(status.st_mode) &&
      (how == Reading::in_parts || (how == Reading::large_in_parts && size >= worth_parts))) {
    if (std::optional<Turn> turn = Turn::take()) {
      // Memory that is not there until it is written to.
      void* const start =
          mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start != MAP_FAILED) {
        memory_ = {static_cast<std::uint8_t*>(start), [size](std::uint8_t* bytes) { munmap(bytes, size); }};
        bytes_ = {memory_.get(), size};
        parts_ =
            std::make_unique<Parts>(std::move(file), std::move(*turn), status, path.string(), how == Reading::in_parts);
        return;
      }
    }
  }
  memory_ = aligned_memory(size);
  in_large_pages({memory_.get(), size});
  bytes_ = {memory_.get(), read_at(file, std::nullopt, {memory_.get(), size})};
}

void FileBytes::fetch(Bytes part, bool is_digested) const {
  if (!parts_ || part.empty() || !has(part)) return;
  // What is fetched a page at a time makes few parts of many.
  constexpr std::size_t page = 4096;
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t end = std::min(bytes_.size(), (begin + part.size() + page - 1) / page * page);
  std::size_t at = begin / page * page;
  const std::lock_guard lock(parts_->mutex);
  auto& fetched = parts_->fetched;
  auto next = fetched.upper_bound(at);
  if (next != fetched.begin() && std::prev(next)->second >= at) {
    --next;
    at = next->second;
  }
  if (at >= end) return;
  std::size_t first = next != fetched.end() && next->second == at ? next->first : at;
  auto gap = next != fetched.end() && next->first == first ? std::next(next) : next;
  while (at < end) {
    const std::size_t stop = gap == fetched.end() ? end : std::min(end, gap->first);
    in_large_steps({memory_.get() + at, stop - at});
    if (read_at(parts_->file, at, {memory_.get() + at, stop - at}) != stop - at) parts_->changed();
    parts_->check(is_digested);
    at = stop;
    if (gap != fetched.end() && gap->first == stop) {
      at = gap->second;
      gap = fetched.erase(gap);
    }
    fetched[first] = at;
  }
}

bool FileBytes::is_changed() const {
  if (!parts_) return false;
  const struct stat now = parts_->now(), &before = parts_->status;
  return now.st_size != before.st_size || written(now) != written(before) || touched(now) != touched(before);
}

std::uint64_t FileBytes::size_now() const {
  return parts_ ? static_cast<std::uint64_t>(parts_->now().st_size) : bytes_.size();
}

void FileBytes::read(std::uint64_t position, std::span<std::uint8_t> target, bool is_digested) const {
  if (!parts_) {
    std::ranges::copy(bytes_.subspan(static_cast<std::size_t>(position), target.size()), target.begin());
    return;
  }
  if (read_at(parts_->file, position, target) != target.size()) parts_->changed();
  parts_->check(is_digested);
}

#endif

FileBytes FileBytes::of_artifact(const std::filesystem::path& path, Reading how, std::uint64_t most) {
  constexpr std::uint64_t largest = std::uint64_t{1} << 32;
  try {
    return FileBytes(path, how, std::min(most, largest));
  } catch (const TooLarge& found) {
    if (found.size > most) throw;
    throw Error({}, "an artifact of at most 4 GiB", "a file of " + std::to_string(found.size) + " bytes");
  }
}

FileBytes::~FileBytes() = default;
FileBytes::FileBytes(FileBytes&&) noexcept = default;
FileBytes& FileBytes::operator=(FileBytes&&) noexcept = default;

}  // namespace jaxexp::wire

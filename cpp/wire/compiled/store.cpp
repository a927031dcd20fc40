// Entries are never changed, only replaced by rename: who reads one has opened its file, which stays what it was.
#include "wire/compiled/store.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/text.h"
#include "wire/compiled/written_file.h"

namespace jaxexp::wire {
namespace {

constexpr std::string_view suffix = ".exe";

}  // namespace

#ifdef _WIN32

class WrittenFile {};

bool everybody_may_write(const std::filesystem::path&) { return false; }
bool is_of_another_user(const std::filesystem::path&) { return false; }
Store::Store(const std::filesystem::path&, std::uint64_t) {
  throw std::system_error(std::make_error_code(std::errc::function_not_supported));
}
std::optional<Store::Entry> Store::find(const Entries&) const { return std::nullopt; }
bool Store::put(const Entries&, const Entries&, std::span<const std::uint8_t>) const { return false; }
void Store::remove(const Entries&) const {}
Store::Turn::~Turn() = default;
std::optional<Store::Turn> Store::turn(const Entries&) const { return Turn(nullptr); }

#else

namespace {

namespace fs = std::filesystem;

constexpr std::string_view lock_suffix = ".lock", temporary_suffix = ".tmp";
constexpr std::size_t name_size = 64 + suffix.size();
/// What a process that died has left behind is removed after this time.
constexpr std::chrono::hours left_behind(24);

/// Removes the lock of a process that died, which nobody holds. Whoever has just made it notices that it is gone.
void remove_if_free(const fs::path& lock) {
  const WrittenFile file(lock, 0);
  if (file.lock() && file.is_named()) unlink(lock.c_str());
}

struct Found {
  fs::path path;
  fs::file_time_type used;
  std::uint64_t size;
};

}  // namespace

bool everybody_may_write(const fs::path& folder) {
  struct stat found;
  return stat(folder.c_str(), &found) == 0 && (found.st_mode & S_IWOTH) != 0;
}

bool is_of_another_user(const fs::path& folder) {
  struct stat found;
  return stat(folder.c_str(), &found) == 0 && found.st_uid != 0 && found.st_uid != getuid();
}

Store::Store(const fs::path& folder, std::uint64_t max_bytes) : folder_(fs::absolute(folder)), max_bytes_(max_bytes) {
  if (const fs::path parent = folder_.parent_path(); !parent.empty()) fs::create_directories(parent);
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) throw_errno();
  if (!fs::is_directory(folder_)) throw std::system_error(std::make_error_code(std::errc::not_a_directory));
}

std::optional<Store::Entry> Store::find(const Entries& conditions) const {
  const fs::path path = folder_ / name(conditions);
  try {
    const FileBytes file(path, FileBytes::Reading::in_parts, std::numeric_limits<std::uint64_t>::max());
    const ExecutableRecords found = read_executables(file);
    if (found.records.size() != 1) throw Error({}, "one executable", std::to_string(found.records.size()));
    const ExecutableRecord& record = found.records.front();
    if (record.conditions != conditions) throw Error({}, "the conditions of its name", "different conditions");
    std::optional<Entry> entry(Entry{record.call, read_code(file, record)});
    utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // it was used; in a folder of others, nobody is told
    return entry;
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::no_such_file_or_directory) return std::nullopt;
    throw;
  }
}

bool Store::put(const Entries& conditions, const Entries& call, std::span<const std::uint8_t> code) const {
  const std::string head = executables_head() + executable_head(conditions, call, code.size(), digest(code));
  const std::string zeros(executable_padding(code.size()), '\0');
  if (head.size() + code.size() + zeros.size() > max_bytes_) return false;
  const fs::path path = folder_ / name(conditions);
  const TemporaryName temporary(folder_);
  {
    const WrittenFile file(temporary.path(), O_CREAT | O_EXCL);
    file.write(head);
    file.write({reinterpret_cast<const char*>(code.data()), code.size()});
    file.write(zeros);
  }
  fs::rename(temporary.path(), path);
  clean(path);
  return true;
}

void Store::remove(const Entries& conditions) const {
  std::error_code ignored;
  fs::remove(folder_ / name(conditions), ignored);
}

/// Others may remove files meanwhile.
void Store::clean(const fs::path& keep) const {
  std::vector<Found> entries;
  std::uint64_t total = 0;
  const auto now = fs::file_time_type::clock::now();
  std::error_code ignored;
  for (fs::directory_iterator at(folder_, ignored), end; !ignored && at != end; at.increment(ignored)) {
    const std::string file = at->path().filename().string();
    std::error_code gone;
    const auto used = at->last_write_time(gone);
    const auto size = at->file_size(gone);
    if (gone) continue;
    if (file.size() == name_size && file.ends_with(suffix)) {
      total += size;
      entries.push_back({at->path(), used, size});
    } else if (file.ends_with(lock_suffix)) {
      try {
        remove_if_free(at->path());
      } catch (const std::system_error&) {  // it is gone, or of another user, or nothing can be locked here
        if (now - used > left_behind) fs::remove(at->path(), gone);
      }
    } else if (file.ends_with(temporary_suffix) && now - used > left_behind) {
      fs::remove(at->path(), gone);
    }
  }
  std::ranges::sort(entries, {}, &Found::used);
  for (const Found& entry : entries) {
    if (total <= max_bytes_) return;
    if (entry.path == keep) continue;
    fs::remove(entry.path, ignored);
    total -= entry.size;
  }
}

Store::Turn::~Turn() {
  if (file_) unlink(file_->path().c_str());  // before it is unlocked: who waits for it then notices
}

std::optional<Store::Turn> Store::turn(const Entries& conditions) const {
  const fs::path path = folder_ / (name(conditions) + std::string(lock_suffix));
  try {
    for (;;) {
      auto file = std::make_unique<const WrittenFile>(path, O_CREAT);
      if (!file->lock()) return std::nullopt;
      if (file->is_named()) return Turn(std::move(file));
    }
  } catch (const std::system_error&) {  // nothing can be written here, or nothing locked
    return Turn(nullptr);
  }
}

#endif

Store::Turn::Turn(std::unique_ptr<const WrittenFile> file) : file_(std::move(file)) {}
Store::Turn::Turn(Turn&&) noexcept = default;

std::string Store::name(const Entries& conditions) {
  std::string text;
  for (const auto& [name, value] : conditions)
    for (const std::string& part : {name, value}) (text += std::to_string(part.size()) += ':') += part;
  return hexadecimal(sha256({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()})) + std::string(suffix);
}

}  // namespace jaxexp::wire

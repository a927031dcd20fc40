// The file is locked as Python locks it (jaxexp/_kernel/io/lock.py).
#include "wire/compiled/append.h"

#include <cerrno>
#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "wire/base/error.h"
#include "wire/compiled/written_file.h"

namespace jaxexp::wire {

#ifdef _WIN32

void append_executable(const std::filesystem::path&, const Entries&, const Entries&, std::span<const std::uint8_t>) {
  throw std::system_error(std::make_error_code(std::errc::function_not_supported));
}

#else

namespace {

/// Makes the file with all that it has at once. Whether there was none.
bool make(const std::filesystem::path& path, std::initializer_list<std::string_view> parts) {
  const TemporaryName temporary(path.parent_path());
  const WrittenFile file(temporary.path(), O_CREAT | O_EXCL);
  for (const std::string_view part : parts) file.write(part);
  if (link(temporary.path().c_str(), path.c_str()) == 0) return true;
  if (errno == EEXIST) return false;
  // A file system without links.
  if (access(path.c_str(), F_OK) == 0) return false;
  if (rename(temporary.path().c_str(), path.c_str()) != 0) throw_errno();
  return true;
}

/// Throws FileIsLocked where another process has the lock, and keeps it.
void lock(const WrittenFile& file) {
  using std::chrono::steady_clock;
  constexpr std::chrono::seconds patience(30);
  for (const auto start = steady_clock::now(); !file.lock();) {
    if (steady_clock::now() - start > patience) throw FileIsLocked{};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

/// Adds a record to a file, which gets the head of one first if it is empty.
void add(const std::filesystem::path& path, std::string_view file_head, std::initializer_list<std::string_view> parts) {
  for (;;) {
    const WrittenFile file(path, 0);
    lock(file);
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

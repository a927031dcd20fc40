// Everything is checked before it is used. Digests find damage; they do not tell who wrote the file.
#include "wire/compiled/records.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <thread>

#include "executables_generated.h"
#include "wire/base/error.h"
#include "wire/base/text.h"
#include "wire/compiled/written_file.h"

namespace jaxexp::wire {
namespace {

constexpr std::string_view file_mark = "JAXEXPEX", record_mark = "JAXEXPXR";
constexpr std::uint32_t layout_version = 1;
constexpr std::size_t unit = 64;  // heads have this size; records and their code begin at multiples of it
constexpr std::size_t file_digest_at = 48, record_digest_at = 56, record_digest_size = 8;
constexpr std::size_t max_description_size = std::size_t{1} << 24, max_entries = std::size_t{1} << 17;
constexpr const char* advice = "; delete the file, and precompile again";

using Head = std::array<std::uint8_t, unit>;

constexpr std::uint64_t padding(std::uint64_t size) { return (unit - size % unit) % unit; }

template <class Number>
Number number_at(const Head& head, std::size_t position) {
  return flatbuffers::ReadScalar<Number>(head.data() + position);
}

template <class Number>
void put_number(std::string& bytes, Number number) {
  std::array<std::uint8_t, sizeof number> encoded;
  flatbuffers::WriteScalar(encoded.data(), number);
  bytes.append(encoded.begin(), encoded.end());
}

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Digest digest_at(const Head& head, std::size_t position) {
  Digest digest;
  std::copy_n(head.begin() + static_cast<std::ptrdiff_t>(position), digest.size(), digest.begin());
  return digest;
}

bool has_mark(const Head& head, std::string_view mark) {
  return std::memcmp(head.data(), mark.data(), mark.size()) == 0;
}

/// Whether the head ends with the digest of what is in front of it, or the beginning of that.
bool is_intact(const Head& head, std::size_t digest_position) {
  const Digest found = digest(std::span(head).first(digest_position));
  return std::memcmp(found.data(), head.data() + digest_position, unit - digest_position) == 0;
}

Entries entries_of(const flatbuffers::Vector<flatbuffers::Offset<schema::Entry>>& list, std::size_t& bytes_left,
                   const Path& path) {
  if (list.size() > max_entries)
    throw Error(path, "at most " + std::to_string(max_entries) + " entries", std::to_string(list.size()));
  Entries entries;
  entries.reserve(list.size());
  for (const schema::Entry* const entry : list) {
    for (const flatbuffers::String* const text : {entry->key(), entry->value()}) {
      if (text->size() > bytes_left)
        throw Error(path, "texts that are not shared", "more of them than there are bytes");
      bytes_left -= text->size();
      if (!is_utf8({text->Data(), text->size()})) throw Error(path, "UTF-8", "bytes that are not");
    }
    entries.emplace_back(entry->key()->str(), entry->value()->str());
  }
  return entries;
}

void describe(ExecutableRecord& record, std::span<const std::uint8_t> bytes, const Path& path) {
  flatbuffers::Verifier::Options options;
  options.max_depth = 3;
  options.max_tables = 2 * max_entries + 1;
  options.check_alignment = true;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), options);
  if (bytes.size() < FLATBUFFERS_MIN_BUFFER_SIZE || !verifier.VerifyBuffer<schema::Executable>(nullptr))
    throw Error(path, "tables inside the description", "tables that reach beyond its end");
  const auto& description = *flatbuffers::GetRoot<schema::Executable>(bytes.data());
  std::size_t bytes_left = bytes.size();
  record.conditions = entries_of(*description.conditions(), bytes_left, {&path, "conditions"});
  record.call = entries_of(*description.call(), bytes_left, {&path, "call"});
}

void check_file_head(const FileBytes& file) {
  Head head{};
  if (file.bytes().size() >= unit) file.read(0, head);
  if (file.bytes().size() < unit || !has_mark(head, file_mark))
    throw Error({}, "a file of executables", file.bytes().empty() ? "an empty file" : "something else");
  if (!is_intact(head, file_digest_at))
    throw Error({}, "the head of the file as it was written", std::string("a different head") + advice);
  if (const auto version = number_at<std::uint32_t>(head, file_mark.size()); version != layout_version)
    throw Error({}, "version " + std::to_string(layout_version) + " of the layout",
                std::to_string(version) + "; use a newer jaxexp");
}

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::Entry>>> build(
    flatbuffers::FlatBufferBuilder& builder, const Entries& entries) {
  std::vector<flatbuffers::Offset<schema::Entry>> offsets;
  offsets.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    const auto name = builder.CreateString(key);
    offsets.push_back(schema::CreateEntry(builder, name, builder.CreateString(value)));
  }
  return builder.CreateVector(offsets);
}

/// Adds the record at the end of those that were found, if it is complete in so many bytes of the file. `words` is
/// memory for the description: aligned as a flat buffer has to be.
bool read_record(const FileBytes& file, std::uint64_t size, ExecutableRecords& found,
                 std::vector<std::uint64_t>& words) {
  if (size < found.end || size - found.end < unit) return false;
  const std::string where = "records";
  const Path path{nullptr, where, static_cast<std::int64_t>(found.records.size())};
  Head head{};
  file.read(found.end, head);
  if (!has_mark(head, record_mark) || !is_intact(head, record_digest_at))
    throw Error(path, "the head of a record as it was written", std::string("a different head") + advice);
  const std::size_t description_size = number_at<std::uint32_t>(head, 8);
  if (description_size > max_description_size)
    throw Error(path, "a description of at most " + std::to_string(max_description_size) + " bytes",
                std::to_string(description_size));
  const std::uint64_t code_size = number_at<std::uint64_t>(head, 16);
  const std::uint64_t code_at = found.end + unit + description_size + padding(description_size);
  if (code_at > size || code_size > size - code_at || padding(code_size) > size - code_at - code_size) return false;
  words.resize((description_size + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  const std::span description(reinterpret_cast<std::uint8_t*>(words.data()), description_size);
  file.read(found.end + unit, description);
  if (digest(description) != digest_at(head, 24))
    throw Error(path, "the description as it was written", std::string("a different description") + advice);
  ExecutableRecord record{{}, {}, code_at, code_size, digest_at(head, 40)};
  describe(record, description, path);
  found.records.push_back(std::move(record));
  found.end = code_at + code_size + padding(code_size);
  return true;
}

}  // namespace

ExecutableRecords read_executables(const FileBytes& file, std::uint64_t position) {
  if (position == 0) check_file_head(file);
  ExecutableRecords found{{}, position == 0 ? unit : position};
  std::vector<std::uint64_t> words;
  for (int attempts_left = 8;;) {
    // Not more than there was at first: the file may grow faster than it is read.
    const std::uint64_t size = std::min<std::uint64_t>(file.bytes().size(), file.size_now());
    try {
      while (read_record(file, size, found, words)) continue;
      return found;
    } catch (const Error&) {
      // Somebody may just be writing over a record that was not finished.
      if (--attempts_left == 0 || !file.is_changed()) throw;
    }
  }
}

std::vector<std::uint8_t> read_code(const FileBytes& file, const ExecutableRecord& record) {
  std::vector<std::uint8_t> code(record.size);
  file.read(record.position, code);
  if (digest(code) != record.digest)
    throw Error({nullptr, "code"}, "the bytes as they were written", std::string("different bytes") + advice);
  return code;
}

std::string executables_head() {
  std::string bytes(file_mark);
  put_number(bytes, layout_version);
  bytes.resize(file_digest_at);
  const Digest found = digest(bytes_of(bytes));
  return bytes.append(found.begin(), found.end());
}

std::string executable_head(const Entries& conditions, const Entries& call, std::uint64_t size, const Digest& code) {
  flatbuffers::FlatBufferBuilder builder;
  const auto listed = build(builder, conditions);
  builder.Finish(schema::CreateExecutable(builder, listed, build(builder, call)));
  const std::span<const std::uint8_t> description(builder.GetBufferPointer(), builder.GetSize());
  if (description.size() > max_description_size || std::max(conditions.size(), call.size()) > max_entries)
    throw Error({}, "a description of at most " + std::to_string(max_description_size) + " bytes",
                std::to_string(description.size()));
  std::string bytes(record_mark);
  put_number(bytes, static_cast<std::uint32_t>(description.size()));
  put_number(bytes, std::uint32_t{0});
  put_number(bytes, size);
  for (const Digest& one : {digest(description), code}) bytes.append(one.begin(), one.end());
  const Digest own = digest(bytes_of(bytes));
  bytes.append(own.begin(), own.begin() + record_digest_size);
  bytes.append(description.begin(), description.end());
  bytes.append(padding(description.size()), '\0');
  return bytes;
}

std::size_t executable_padding(std::uint64_t size) { return padding(size); }

// The file is locked as Python locks it (jaxexp/_kernel/io/lock.py).

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

// Knows the layout, and nothing of the code that reads it.
#include "executables.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "wire/base/digest.h"

namespace jaxexp::tests {
namespace {

constexpr std::size_t unit = 64, file_digest = 48, record_digest = 56;
constexpr std::string_view file_mark = "JAXEXPEX", record_mark = "JAXEXPXR";

std::size_t up(std::size_t size) { return (size + unit - 1) / unit * unit; }

std::uint64_t number(std::span<const std::uint8_t> bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, width);
  return value;
}

/// The digest of a part of the bytes, or as much of it as there is room for.
void seal(std::vector<std::uint8_t>& bytes, std::size_t at, std::size_t size, std::size_t to, std::size_t room) {
  const wire::Digest digest = wire::digest(std::span(bytes).subspan(at, size));
  std::copy_n(digest.begin(), room, bytes.begin() + static_cast<std::ptrdiff_t>(to));
}

void put_mark(std::vector<std::uint8_t>& bytes, std::size_t at, std::string_view mark) {
  std::ranges::copy(mark, bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace

bool are_executables(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= unit && std::memcmp(bytes.data(), file_mark.data(), file_mark.size()) == 0;
}

std::vector<RecordPlace> records_of(std::span<const std::uint8_t> bytes) {
  std::vector<RecordPlace> records;
  for (std::size_t at = unit; at + unit <= bytes.size();) {
    const std::size_t description = number(bytes, at + 8, 4), code = number(bytes, at + 16, 8);
    const std::size_t code_at = at + unit + up(description);
    if (code_at > bytes.size() || code > bytes.size() - code_at || up(code) > bytes.size() - code_at) break;
    records.push_back({at, description, code_at, code});
    at = code_at + up(code);
  }
  return records;
}

void seal_executables(std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < unit) return;
  put_mark(bytes, 0, file_mark);
  seal(bytes, 0, file_digest, file_digest, unit - file_digest);
  const auto records = records_of(bytes);
  const auto seal_head = [&](std::size_t at) {
    put_mark(bytes, at, record_mark);
    seal(bytes, at, record_digest, at + record_digest, unit - record_digest);
  };
  for (const RecordPlace& record : records) {
    seal(bytes, record.at + unit, record.description_size, record.at + 24, 16);
    seal(bytes, record.code_at, record.code_size, record.at + 40, 16);
    seal_head(record.at);
  }
  // A record that was not finished.
  const std::size_t end = records.empty() ? unit : records.back().code_at + up(records.back().code_size);
  if (end + unit <= bytes.size()) seal_head(end);
}

}  // namespace jaxexp::tests

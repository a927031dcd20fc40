// Fuzz target: a file of executables, as it is and with digests that are right. What is read lies inside the file,
// what is added does not touch what was there, and what a record says does no harm.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "errors.h"
#include "executables.h"
#include "jaxexp/run_error.h"
#include "runtime/function/kept_record.h"
#include "runtime/signature/tiling.h"
#include "wire/compiled/records.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;
using Reading = wire::FileBytes::Reading;

/// A file of this process, in memory where there is such a folder.
const std::filesystem::path& path() {
  static const std::filesystem::path path = [] {
    const std::filesystem::path memory = "/dev/shm";
    const auto folder = std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    return folder / ("jaxexp-fuzz-executables-" + std::to_string(getpid()));
  }();
  static const struct Removed {
    ~Removed() { std::filesystem::remove(path_); }
    std::filesystem::path path_;
  } removed{path};
  return path;
}

void write(const Bytes& bytes) {
  std::ofstream file(path(), std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

Bytes written() {
  std::ifstream file(path(), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return {text.begin(), text.end()};
}

/// What the runtime makes of a record before any plugin sees its code.
void use(const wire::ExecutableRecord& record) {
  static const wire::Entries here{{"function", "double"}, {"module", ""}, {"plugin", "1"}};
  const std::string why = runtime::difference(record.conditions, here);
  tests::require(why.size() < 1000 && tests::is_utf8(why), "a reason is short and can be shown");
  const runtime::HloShardings shardings = runtime::shardings_in(record.call);
  const auto divide = [](const std::string& proto) {
    try {
      const runtime::Tiling tiling({reinterpret_cast<const std::uint8_t*>(proto.data()), proto.size()}, 4, "x");
      for (std::size_t device = 0; device < 4; ++device) {
        const auto [start, size] = tiling.part({8, 8}, device, "x");
        for (std::size_t d = 0; d < 2; ++d)
          tests::require(start[d] >= 0 && size[d] >= 0 && start[d] + size[d] <= 8, "a part is inside of its array");
      }
    } catch (const RunError& error) {
      tests::require(std::string_view(error.what()).size() < 1000, "an error is short");
    }
  };
  for (const std::string& proto : shardings.parameters) divide(proto);
  for (const std::string& proto : shardings.results) divide(proto);
}

bool is_same(const wire::ExecutableRecord& one, const wire::ExecutableRecord& other) {
  return one.conditions == other.conditions && one.call == other.call && one.position == other.position &&
         one.size == other.size && one.digest == other.digest;
}

bool is_damaged(const wire::FileBytes& file, const wire::ExecutableRecord& record) {
  try {
    tests::require(wire::read_code(file, record).size() == record.size, "code has its size");
    return false;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return true;
  }
}

/// The records of the bytes, in a file; none where they are refused.
std::optional<wire::ExecutableRecords> read(const Bytes& bytes) {
  write(bytes);
  try {
    const wire::FileBytes file(path(), Reading::in_parts, ~std::uint64_t{0});
    auto found = wire::read_executables(file);
    std::uint64_t end = 64;
    for (const wire::ExecutableRecord& record : found.records) {
      tests::require(record.position % 64 == 0 && record.position >= end + 64, "records follow each other");
      end = (record.position + record.size + 63) / 64 * 64;
      for (const auto* entries : {&record.conditions, &record.call})
        for (const auto& [name, value] : *entries)
          tests::require(tests::is_utf8(name) && tests::is_utf8(value), "texts are UTF-8");
      is_damaged(file, record);
      use(record);
    }
    tests::require(end == found.end && end <= bytes.size(), "they are in the file");
    const wire::FileBytes whole(path(), Reading::at_once, ~std::uint64_t{0});
    tests::require(std::ranges::equal(wire::read_executables(whole).records, found.records, is_same),
                   "a file that is read at once has the same records");
    tests::require(wire::read_executables(file, found.end).records.empty(), "behind the last one there is none");
    return found;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return std::nullopt;
  }
}

/// Adds a record to the file that has these bytes, and these records. An empty file has none, and becomes a new one.
void append(const Bytes& bytes, const std::optional<wire::ExecutableRecords>& found) {
  write(bytes);
  const Bytes code(130, 7);
  const wire::Entries conditions{{"module", "new"}, {"", ""}}, call{{"call", "x"}};
  const std::size_t added_size = wire::executable_head(conditions, call, 0, {}).size() + 192;
  const std::string head = wire::executables_head();
  const auto before = bytes.empty() ? wire::ExecutableRecords{{}, head.size()} : found;
  const Bytes kept = bytes.empty() ? Bytes(head.begin(), head.end()) : bytes;
  try {
    wire::append_executable(path(), conditions, call, code);
  } catch (const wire::Error& error) {
    tests::check_error(error);
    tests::require(!before && written() == bytes, "what cannot be read stays as it is");
    return;
  }
  tests::require(before.has_value(), "what can be added to can be read");
  const Bytes longer = written();
  tests::require(longer.size() == before->end + added_size, "what was not finished has gone");
  tests::require(std::equal(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(before->end), longer.begin()),
                 "nothing is overwritten");
  const wire::FileBytes file(path(), Reading::in_parts, ~std::uint64_t{0});
  const auto after = wire::read_executables(file), added = wire::read_executables(file, before->end);
  tests::require(after.records.size() == before->records.size() + 1 && added.records.size() == 1, "one was added");
  tests::require(is_same(after.records.back(), added.records[0]) && after.end == longer.size(), "it is the last one");
  tests::require(wire::read_code(file, after.records.back()) == code, "it has its code");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes(data, data + size);
  append(bytes, read(bytes));
  Bytes sealed = bytes;
  tests::seal_executables(sealed);
  const auto found = read(sealed);
  append(sealed, found);
  if (!found) return 0;
  // Each bit counts of what has digests; of many records, those of some.
  const auto places = tests::records_of(sealed);
  for (const tests::RecordPlace& record : std::span(places).first(std::min<std::size_t>(places.size(), 4))) {
    const std::size_t bits = 8 * (64 + record.description_size), bit = (record.at * 31 + size * 17) % bits;
    Bytes damaged = sealed;
    damaged[record.at + bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const auto left = read(damaged);
    tests::require(!left || left->records.size() < found->records.size(), "a changed bit is noticed");
  }
  return 0;
}

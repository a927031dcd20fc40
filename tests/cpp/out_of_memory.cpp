// Reads one artifact, many, and an archive, while one allocation after the other fails: each read ends as it does with
// enough memory, or with std::bad_alloc.
//
//   out_of_memory FOLDER FILE...
//
// The files are artifacts; FOLDER is for the archive that is made of them.
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "archive.h"
#include "target.h"
#include "view.h"
#include "wire/archive/verify_member.h"
#include "wire/artifact/fetch.h"
#include "wire/artifact/known.h"
#include "wire/base/crew.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/bytecode/bytecode.h"
#include "wire/exported/chain.h"

namespace {

std::atomic<long> counted{0}, first_failure{LONG_MAX}, last_failure{LONG_MAX};

bool fails() {
  const long number = counted.fetch_add(1, std::memory_order_relaxed);
  return number >= first_failure && number <= last_failure;
}

void* allocate(std::size_t size) {
  void* const memory = fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;
using Paths = std::vector<std::filesystem::path>;
using Reading = wire::FileBytes::Reading;

constexpr std::uint64_t any_size = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t threads = 3;

/// What an artifact says: of its signature and of its modules.
std::string said(const wire::Opened& opened, const wire::FileBytes* file) {
  tests::Content content = tests::view(opened.root());
  for (const auto& [order, function] : wire::Chain(opened.root())) {
    const auto module = opened.module(function, order);
    if (file) file->fetch(module);
    opened.check_module(function, order);
    wire::check_bytecode(module, {});
  }
  return std::to_string(content.digest);
}

std::string load(const std::filesystem::path& path, Reading how, wire::Known& known) {
  try {
    const wire::FileBytes file(path, how, any_size);
    std::optional<wire::Opened> opened;
    wire::open_in(&file, file.bytes(), false, opened, [&] { known.open(file.bytes(), {}, opened); });
    return said(*opened, &file);
  } catch (const wire::Error& error) {
    return error.path + "|" + error.expected + "|" + error.found;
  }
}

std::string load_one(const std::filesystem::path& path) {
  wire::Known known;
  return load(path, Reading::in_parts, known);
}

std::string load_many(const Paths& paths) {
  wire::Known known;
  std::vector<std::string> found(paths.size());
  wire::Crew::run(threads, paths.size(), [&](std::size_t i) { found[i] = load(paths[i], Reading::at_once, known); });
  std::string all;
  for (const std::string& one : found) all += one + '\n';
  return all;
}

std::string verify(const std::filesystem::path& path) {
  const wire::FileBytes file(path, Reading::in_parts, any_size);
  const wire::ArchiveIndex index = tests::index_of(file, tests::end_of(file));
  index.check();
  file.fetch(file.bytes(), false);
  wire::Known known;
  std::vector<std::string> found(index.size());
  wire::Crew::run(threads, index.size(), [&](std::size_t i) {
    const auto number = static_cast<std::uint32_t>(i);
    const auto& place = *index.member(number).place();
    std::vector<std::uint64_t> aligned;
    try {
      wire::verify_member(index, number,
                          file.bytes().subspan(place.position() - place.header(), place.header() + place.size()), {},
                          known, aligned);
      found[i] = "right";
    } catch (const wire::Error& error) {
      found[i] = error.expected + "|" + error.found;
    }
  });
  std::string all;
  for (const std::string& one : found) all += one + '\n';
  return all;
}

/// Lets `failures` allocations in a row fail, from the first one on, then from the second one on, and so on.
void try_all(const char* what, long failures, const std::function<std::string()>& read) {
  const std::string expected = read();
  long tries = 0, refused = 0;
  for (int whole = 0; whole < 3; ++tries) {  // threads do not always allocate the same
    counted = 0;
    last_failure = failures < LONG_MAX - tries ? tries + failures - 1 : LONG_MAX;
    first_failure = tries;
    std::optional<std::string> found;
    try {
      found = read();
    } catch (const std::bad_alloc&) {
      ++refused;
    }
    const long made = counted;
    first_failure = last_failure = LONG_MAX;
    tests::require(!found || *found == expected, "what is read without an error is what is always read");
    whole += found && made <= tries;
  }
  tests::require(refused > 0, "memory runs out");
  std::printf("%s, %s: %ld allocations fail, %ld times in vain\n", what, failures == 1 ? "one" : "all", tries,
              tries - refused);
}

}  // namespace

int main(int argc, char** argv) {
  tests::require(argc > 3, "there are artifacts to read: out_of_memory FOLDER FILE FILE...");
  const std::filesystem::path archive = std::filesystem::path(argv[1]) / "archive.zip";
  const Paths paths(argv + 2, argv + argc);
  std::vector<std::pair<std::string, Bytes>> members;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    members.emplace_back("m" + std::to_string(members.size()), Bytes(text.begin(), text.end()));
  }
  tests::Archive made;
  made.append({members.begin(), members.begin() + 1});
  made.append({members.begin() + 1, members.end()});
  std::ofstream(archive, std::ios::binary)
      .write(reinterpret_cast<const char*>(made.bytes().data()), static_cast<std::streamsize>(made.bytes().size()));
  for (const long failures : {1L, LONG_MAX}) {
    try_all("one artifact", failures, [&] { return load_one(paths.back()); });
    try_all("many artifacts", failures, [&] { return load_many(paths); });
    try_all("an archive", failures, [&] { return verify(archive); });
  }
}

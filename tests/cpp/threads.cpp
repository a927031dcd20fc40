// Eight threads that verify, check, read and write the same and different artifacts, open many files at once with crews
// of their own, and read files in parts, also while somebody appends. Built with -fsanitize=thread.
//
//   threads FILE...
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "archive.h"
#include "rebuild.h"
#include "target.h"
#include "view.h"
#include "wire/archive/verify_member.h"
#include "wire/artifact/opened.h"
#include "wire/base/crew.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/exported/check.h"
#include "wire/exported/generation.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

/// What one look at an artifact finds: its content and what it becomes when it is written again, or why it is refused.
struct Finding {
  std::uint64_t digest = 0;
  std::string writer;
  Bytes rewritten;
  std::string error;
  bool operator==(const Finding&) const = default;
};

Finding look(const Bytes& bytes) {
  try {
    const auto& root = wire::verify(bytes);
    wire::check(root, bytes.size());
    return {tests::view(root).digest, std::string(wire::writer(root)), tests::rebuild(root), ""};
  } catch (const wire::Error& error) {
    return {0, "", {}, error.path + "|" + error.expected + "|" + error.found};
  }
}

constexpr std::size_t thread_count = 8, rounds = 20;

void together(const std::function<void(std::size_t)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < thread_count; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
}

/// Crews that read one file in parts: each verifies all members, by an index of which all look at the same blocks.
void read_in_crews(const wire::FileBytes& file, std::size_t members) {
  const wire::ArchiveIndex index = tests::index_of(file, tests::end_of(file));
  tests::require(index.size() == members, "the archive has its members");
  wire::MetadataCache known;
  std::atomic<std::size_t> verified = 0;
  together([&](std::size_t) {
    wire::Crew::run(3, members, [&](std::size_t i) {
      const auto number = static_cast<std::uint32_t>(i);
      const auto& place = *index.member(number).place();
      const auto member = file.bytes().subspan(place.position() - place.header(), place.header() + place.size());
      file.fetch(member);
      std::vector<std::uint64_t> aligned;
      wire::verify_member(index, number, member, {}, known, aligned);
      std::optional<wire::Opened> opened;
      const auto artifact = file.bytes().subspan(place.position(), place.size());
      wire::open_in(&file, artifact, false, opened, [&] { known.open(artifact, {}, opened); });
      opened->check_module(opened->root(), 0);
      ++verified;
    });
  });
  tests::require(verified == thread_count * members, "all members are right, for every crew");
}

/// Threads that open an archive again and again, while another one appends to it.
void read_while_it_grows(const std::filesystem::path& path, const std::vector<std::pair<std::string, Bytes>>& members) {
  tests::Archive archive;
  std::size_t written = 0;
  const auto append = [&](std::size_t i) {
    archive.append(
        {members.begin() + static_cast<std::ptrdiff_t>(i), members.begin() + static_cast<std::ptrdiff_t>(i) + 1});
    std::ofstream file(path, std::ios::binary | (i == 0 ? std::ios::trunc : std::ios::app));
    const auto more = std::span(archive.bytes()).subspan(written);
    file.write(reinterpret_cast<const char*>(more.data()), static_cast<std::streamsize>(more.size()));
    written = archive.bytes().size();
  };
  append(0);
  std::atomic<bool> is_done = false;
  std::thread writer([&] {
    for (std::size_t i = 1; i < members.size(); ++i) append(i);
    is_done = true;
  });
  together([&](std::size_t) {
    for (std::size_t before = 0; !is_done;) {
      const wire::FileBytes file(path, wire::FileBytes::Reading::in_parts, std::numeric_limits<std::uint64_t>::max());
      const std::size_t end = tests::end_of(file).end;
      tests::require(end >= before, "what was complete stays");
      before = end;
    }
  });
  writer.join();
  const wire::FileBytes file(path, wire::FileBytes::Reading::in_parts, std::numeric_limits<std::uint64_t>::max());
  read_in_crews(file, members.size());
}

/// As `load_many` does: a crew opens files, and its owner takes the results in order while the others go on. Some
/// owners leave before their crew is done.
void open_many(const std::vector<std::filesystem::path>& paths, const std::vector<Finding>& expected) {
  struct Item {
    std::optional<wire::FileBytes> file;
    const wire::MetadataCache::Metadata* metadata = nullptr;
    std::optional<wire::Opened> opened;
    bool is_refused = false;
  };
  together([&](std::size_t t) {
    using Reading = wire::FileBytes::Reading;
    const Reading reading = t % 3 == 0 ? Reading::at_once : t % 3 == 1 ? Reading::large_in_parts : Reading::in_parts;
    wire::MetadataCache known;
    std::vector<Item> items(paths.size());
    wire::Crew crew(2, paths.size(), [&](std::size_t i) {
      Item& item = items[i];
      try {
        item.file.emplace(paths[i], reading, std::numeric_limits<std::uint64_t>::max());
        const auto bytes = item.file->bytes();
        wire::open_in(&*item.file, bytes, false, item.opened,
                      [&] { item.metadata = known.open(bytes, {}, item.opened); });
      } catch (const wire::Error&) {
        item.is_refused = true;
      }
    });
    for (std::size_t i = 0; i < (t < thread_count / 2 ? paths.size() : paths.size() / 2); ++i) {
      while (!crew.wait_for(i, std::chrono::milliseconds(1))) {
      }
      const Item& item = items[i];
      tests::require(item.is_refused == !expected[i].error.empty(), "what is refused is refused beside others");
      if (item.is_refused) continue;
      item.opened->check_module(item.opened->root(), 0);
      tests::require(tests::view(item.opened->root()).digest == expected[i].digest, "all have their own content");
      tests::require(!item.metadata || item.metadata->number < known.size(),
                     "metadata are kept while others are added");
    }
  });
}

/// Files of these artifacts, each three times, so that they share metadata.
void open_copies(const std::vector<Bytes>& artifacts, const std::vector<Finding>& findings) {
  const auto folder = std::filesystem::temp_directory_path() / ("threads-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::vector<std::filesystem::path> paths;
  std::vector<Finding> expected;
  for (std::size_t i = 0; i < 3 * artifacts.size(); ++i) {
    const Bytes& artifact = artifacts[i / 3];
    paths.push_back(folder / std::to_string(i));
    std::ofstream(paths.back(), std::ios::binary)
        .write(reinterpret_cast<const char*>(artifact.data()), static_cast<std::streamsize>(artifact.size()));
    expected.push_back(findings[i / 3]);
  }
  open_many(paths, expected);
  std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> artifacts;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    artifacts.emplace_back(text.begin(), text.end());
    artifacts.emplace_back(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.size() / 2));  // a refused one
  }
  tests::require(artifacts.size() >= 4, "there are artifacts to look at: threads FILE FILE...");

  // The first look of all is taken by every thread at once: what is made on first use is made then.
  std::barrier start(thread_count);
  std::vector<std::vector<Finding>> found(thread_count);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (std::size_t round = 0; round < rounds; ++round) {
        std::vector<Finding> findings(artifacts.size());
        // In step in every other round, so that they meet at the same artifact; apart in those between.
        for (std::size_t i = 0; i < artifacts.size(); ++i) {
          const std::size_t which = round % 2 == 0 ? i : (i + t * artifacts.size() / thread_count) % artifacts.size();
          findings[which] = look(artifacts[which]);
        }
        if (round > 0) tests::require(findings == found[t], "a look finds what the one before it found");
        found[t] = std::move(findings);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t refused = 0;
  for (std::size_t i = 0; i < artifacts.size(); ++i) {
    const Finding alone = look(artifacts[i]);
    refused += !alone.error.empty();
    for (const auto& findings : found) tests::require(findings[i] == alone, "threads find what one alone finds");
  }
  tests::require(refused >= artifacts.size() / 2 && refused < artifacts.size(),
                 "some are accepted, the halves are not");
  std::vector<std::pair<std::string, Bytes>> members;
  for (std::size_t i = 0; i < artifacts.size(); i += 2) members.emplace_back("m" + std::to_string(i), artifacts[i]);
  const auto path = std::filesystem::temp_directory_path() / ("threads-" + std::to_string(getpid()) + ".zip");
  read_while_it_grows(path, members);
  std::filesystem::remove(path);
  open_copies(artifacts, found.front());
  std::printf("%zu threads, %zu rounds over %zu artifacts: all alike\n", thread_count, rounds, artifacts.size());
}

// Eight threads that verify, check, read and write the same and different artifacts. Built with -fsanitize=thread.
//
//   threads FILE...
#include <barrier>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rebuild.h"
#include "target.h"
#include "view.h"
#include "wire/base/error.h"
#include "wire/exported/check.h"
#include "wire/exported/generation.h"
#include "wire/exported/verify.h"

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

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t thread_count = 8, rounds = 20;
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
  std::printf("%zu threads, %zu rounds over %zu artifacts: all alike\n", thread_count, rounds, artifacts.size());
}

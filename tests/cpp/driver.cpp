// Runs a fuzz target where there is no libFuzzer: replays a corpus, then changes what it holds, guided by coverage.
//
//   TARGET [-runs=N] [-max_total_time=SECONDS] [-max_len=N] [-seed=N] [-timeout=SECONDS] [-rss_limit_mb=N]
//          [-artifact_prefix=PATH] [FILE or FOLDER]...
//
// A run that costs more than its input allows (cost.h) is a fault like any other.
// The options have libFuzzer's names. Without -runs and -max_total_time it only replays the corpus. The codec is
// compiled with -fsanitize-coverage=trace-pc; trace.cpp counts where it comes by.
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cost.h"
#include "mutate.h"
#include "target.h"
#include "trace.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

using jaxexp::tests::trace;

// Of each place: a bit for each magnitude of hits that any run had.
std::array<std::uint8_t, jaxexp::tests::Trace::size> seen;

const std::uint8_t* current_data = nullptr;
std::size_t current_size = 0;
std::string artifact_prefix = "./";
std::uint64_t timeout = 60, most_megabytes = 4096;
double worst_cost = 0;

/// Writes the input at hand to a file, wherever the program is: only system calls.
void save_current() {
  if (!current_data) return;
  static char path[4096];
  std::snprintf(path, sizeof path, "%scrash-%d", artifact_prefix.c_str(), static_cast<int>(getpid()));
  if (FILE* const file = std::fopen(path, "wb")) {
    std::fwrite(current_data, 1, current_size, file);
    std::fclose(file);
    std::fprintf(stderr, "the input is in %s (%zu bytes)\n", path, current_size);
  }
  current_data = nullptr;
}

void on_signal(int signal) {
  std::fprintf(stderr, signal == SIGALRM ? "a run took too long\n" : "the target aborted\n");
  save_current();
  _exit(1);
}

/// The bit for a number of hits: 1, 2, 3, 4 to 7, 8 to 15, and so on.
std::uint8_t magnitude(std::uint8_t count) {
  if (count <= 3) return static_cast<std::uint8_t>(1u << (count - 1));
  return static_cast<std::uint8_t>(1u << std::min<int>(std::bit_width(count), 7));
}

/// Of resident memory, at the peak. On Linux, it begins with the peak of the process that started this one.
std::uint64_t peak_megabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return static_cast<std::uint64_t>(usage.ru_maxrss) >> 20;
#else
  return static_cast<std::uint64_t>(usage.ru_maxrss) >> 10;
#endif
}

const std::uint64_t inherited_megabytes = peak_megabytes();

/// Our own.
std::uint64_t megabytes() {
  const std::uint64_t peak = peak_megabytes();
  return peak > inherited_megabytes ? peak : 0;
}

/// Runs the target on a copy that ends where its memory ends. Whether it did anything new.
bool run(const Bytes& input) {
  const std::unique_ptr<std::uint8_t[]> copy(new std::uint8_t[input.size()]);
  if (!input.empty()) std::memcpy(copy.get(), input.data(), input.size());
  current_data = copy.get();
  current_size = input.size();
  alarm(static_cast<unsigned>(timeout));
  {
    const jaxexp::tests::Cost cost;
    LLVMFuzzerTestOneInput(copy.get(), input.size());
    const double ratio = jaxexp::tests::cost_ratio(cost.found(), input.size());
    worst_cost = std::max(worst_cost, ratio);
    jaxexp::tests::require(ratio <= 1, "a run costs in proportion to its input");
  }
  jaxexp::tests::require(megabytes() <= most_megabytes, "memory stays within -rss_limit_mb");
  current_data = nullptr;
  bool is_new = false;
  for (; trace.count > 0; --trace.count) {
    const std::uint16_t place = trace.places[trace.count - 1];
    const std::uint8_t bit = magnitude(trace.hits[place]);
    is_new = is_new || (seen[place] & bit) == 0;
    seen[place] |= bit;
    trace.hits[place] = 0;
  }
  return is_new;
}

Bytes bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return {text.begin(), text.end()};
}

const Bytes& any_of(const std::vector<Bytes>& corpus, std::uint64_t& random) {
  return corpus[jaxexp::tests::next_random(random) % corpus.size()];
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seconds = 0, seed = 1, max_len = 4096;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto number = [&](std::string_view name, std::uint64_t& value) {
      if (!argument.starts_with(name)) return false;
      value = std::strtoull(argv[i] + name.size(), nullptr, 10);
      return true;
    };
    if (number("-runs=", runs) || number("-max_total_time=", seconds) || number("-seed=", seed) ||
        number("-max_len=", max_len) || number("-timeout=", timeout) || number("-rss_limit_mb=", most_megabytes))
      continue;
    if (argument.starts_with("-artifact_prefix=")) {
      artifact_prefix = argument.substr(std::strlen("-artifact_prefix="));
    } else if (argument.starts_with("-")) {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      return 2;
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) files.push_back(entry.path());
    } else {
      files.emplace_back(argument);
    }
  }
  // Folders are listed in any order; what is run should depend only on the seed.
  std::ranges::sort(files);
  __sanitizer_set_death_callback(save_current);
  for (const int signal : {SIGABRT, SIGALRM}) ::signal(signal, on_signal);

  std::vector<Bytes> corpus;
  std::uint64_t done = 0;
  for (const auto& file : files) {
    Bytes bytes = bytes_of(file);
    ++done;
    if (run(bytes) && bytes.size() <= max_len) corpus.push_back(std::move(bytes));
  }
  if (corpus.empty()) corpus.emplace_back();
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start).count();
  };
  std::uint64_t random = seed;
  const auto more = [&] {
    if (runs != 0) return done < runs;
    return seconds != 0 && (done % 256 != 0 || static_cast<std::uint64_t>(elapsed()) < seconds);
  };
  // Most inputs stay small, as most faults do; a few may become as large as is allowed.
  constexpr std::uint64_t usual = 4096, rarely = 64;
  Bytes input;
  while (more()) {
    // The smaller one of two: most faults need few bytes, and many small inputs run in the time of a large one.
    const Bytes* parent = &any_of(corpus, random);
    if (const Bytes& other = any_of(corpus, random); other.size() < parent->size()) parent = &other;
    const std::uint64_t choice = jaxexp::tests::next_random(random);
    const std::uint64_t longest = choice / 4 % rarely == 0 ? max_len : std::min(max_len, usual);
    input.resize(std::max<std::uint64_t>(longest, parent->size()));
    std::ranges::copy(*parent, input.begin());
    const auto mutate = choice % 4 == 0 ? jaxexp::tests::mutate_bytes : jaxexp::tests::mutate;
    input.resize(mutate(input.data(), parent->size(), input.size(), choice));
    ++done;
    if (run(input)) corpus.push_back(input);
  }
  const auto edges = std::ranges::count_if(seen, [](std::uint8_t bits) { return bits != 0; });
  std::printf("Done %llu runs in %lld second(s), cov: %lld, corpus: %zu, cost: %.3f\n",
              static_cast<unsigned long long>(done), static_cast<long long>(elapsed()), static_cast<long long>(edges),
              corpus.size(), worst_cost);
}

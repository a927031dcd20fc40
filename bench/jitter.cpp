// How regular calls of a function are at a fixed rate, as in a control loop, on Linux:
//
//   taskset -c 1 chrt -f 80 jitter PLUGIN ARTIFACT HERTZ CALLS
//
// The second half of the run keeps the processor busy for as long as the median call took, without the plugin: what is
// late there is late because of the machine.
#include <jaxexp/runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "ones.h"

namespace {

using namespace jaxexp;
using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

struct Measured {
  std::vector<Microseconds> lasted, late;
};

template <class Work>
Measured at_rate(Microseconds period, int count, const Work& work) {
  Measured measured;
  Clock::time_point due = Clock::now();
  for (int i = 0; i < count; ++i) {
    due += std::chrono::duration_cast<Clock::duration>(period);
    std::this_thread::sleep_until(due);
    const Clock::time_point begin = Clock::now();
    work();
    measured.late.push_back(begin - due);
    measured.lasted.push_back(Clock::now() - begin);
  }
  std::ranges::sort(measured.late);
  std::ranges::sort(measured.lasted);
  return measured;
}

Microseconds part(const std::vector<Microseconds>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void show(const char* what, const std::vector<Microseconds>& sorted) {
  std::printf("%s:", what);
  for (const double share : {0.5, 0.99, 0.999, 1.0})
    std::printf("  p%g %.1f", 100 * share, part(sorted, share).count());
  std::printf(" us\n");
}

}  // namespace

int main(int argc, char** argv) {
  bench::require(argc == 5, "usage: jitter PLUGIN ARTIFACT HERTZ CALLS");
  const Runtime runtime{std::filesystem::path(argv[1])};
  const Function function = runtime.load(std::filesystem::path(argv[2]));
  const std::vector<Array> arguments = bench::arrays_like(function.arguments());
  std::vector<std::vector<std::byte>> memory;
  for (const Array& result : function.call(arguments)) memory.emplace_back(result.size_bytes());
  const std::vector<std::span<std::byte>> results(memory.begin(), memory.end());
  bench::require(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "memory may be locked: see ulimit -l");

  const Microseconds period(1e6 / std::stod(argv[3]));
  const int count = std::stoi(argv[4]);
  const Measured calls = at_rate(period, count, [&] { function.call_into(arguments, results); });
  const Microseconds typical = part(calls.lasted, 0.5);
  const Measured alone = at_rate(period, count, [&] {
    for (const auto end = Clock::now() + typical; Clock::now() < end;) continue;
  });

  const std::filesystem::directory_iterator threads("/proc/self/task");
  std::printf("threads: %td\n", std::distance(begin(threads), end(threads)));
  show("calls", calls.lasted);
  show("woken late by", calls.late);
  show("as long without the plugin", alone.lasted);
  show("woken late by", alone.late);
}

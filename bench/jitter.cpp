// How regular calls of a function are at a fixed rate, as in a control loop, on Linux:
//
//   jitter PLUGIN ARTIFACT HERTZ CALLS [lock] [fifo] [cpu=N]
//
// `lock` keeps all memory resident, `fifo` asks for real-time scheduling (both need the rights for it), and `cpu=N`
// pins the calling thread to a processor. Only a machine that does nothing else gives numbers that mean something.
#include <jaxexp/runtime.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "ones.h"

namespace {

using namespace jaxexp;
using Clock = std::chrono::steady_clock;

void set_up(const std::string& how) {
  int status = 0;
  if (how == "lock") {
    status = mlockall(MCL_CURRENT | MCL_FUTURE);
  } else if (how == "fifo") {
    sched_param parameters{};
    parameters.sched_priority = 80;
    status = sched_setscheduler(0, SCHED_FIFO, &parameters);
  } else {
    bench::require(how.starts_with("cpu="), "options are lock, fifo and cpu=N");
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<std::size_t>(std::stoul(how.substr(4))), &cpus);
    status = sched_setaffinity(0, sizeof cpus, &cpus);
  }
  if (status == 0) return;
  std::fprintf(stderr, "%s: %s\n", how.c_str(), std::strerror(errno));
  std::exit(1);
}

void show(const char* what, std::vector<double> microseconds) {
  std::ranges::sort(microseconds);
  std::printf("%s:", what);
  for (const double part : {0.5, 0.99, 0.999, 1.0}) {
    const auto last = static_cast<double>(microseconds.size() - 1);
    std::printf("  p%g %.1f", 100 * part, microseconds[static_cast<std::size_t>(part * last)]);
  }
  std::printf(" us\n");
}

}  // namespace

int main(int argc, char** argv) {
  bench::require(argc >= 5, "usage: jitter PLUGIN ARTIFACT HERTZ CALLS [lock] [fifo] [cpu=N]");
  const Runtime runtime{std::filesystem::path(argv[1])};
  const Function function = runtime.load(std::filesystem::path(argv[2]));
  const std::vector<Array> arguments = bench::arrays_like(function.arguments());
  std::vector<std::vector<std::byte>> memory;
  for (const Array& result : function.call(arguments)) memory.emplace_back(result.size_bytes());
  const std::vector<std::span<std::byte>> results(memory.begin(), memory.end());
  for (int i = 5; i < argc; ++i) set_up(argv[i]);  // behind the plugin's threads, which stay as they are

  const std::chrono::duration<double> period(1 / std::stod(argv[3]));
  std::vector<double> late, calls;
  Clock::time_point due = Clock::now();
  for (int i = 0; i < std::stoi(argv[4]); ++i) {
    due += std::chrono::duration_cast<Clock::duration>(period);
    std::this_thread::sleep_until(due);
    const Clock::time_point begin = Clock::now();
    function.call_into(arguments, results);
    using Microseconds = std::chrono::duration<double, std::micro>;
    late.push_back(Microseconds(begin - due).count());
    calls.push_back(Microseconds(Clock::now() - begin).count());
  }
  const std::filesystem::directory_iterator threads("/proc/self/task");
  std::printf("threads: %td\n", std::distance(begin(threads), end(threads)));
  show("woken late by", std::move(late));
  show("calls", std::move(calls));
}

// A process that forks or exits while functions are called, or has them in static objects.
//
//   process HOW PLUGIN ADD SLOW           float32[3] -> float32[3], one more; float32[N, N] -> float32[N, N], slowly
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "jaxexp/runtime.h"

namespace {

using namespace jaxexp;

// Destroyed after what was made later: the plugin's own static objects too.
std::optional<Runtime> kept_runtime;
std::optional<Function> kept_function;
std::vector<Array> kept_arrays;

struct AtExit {
  ~AtExit() {
    if (work) work();
  }
  std::function<void()> work;
} at_exit;

Array argument_of(const Function& function) {
  std::vector<std::int64_t> shape;
  std::size_t count = 1;
  const std::vector<Value> arguments = function.arguments();
  for (const std::string_view size : arguments.at(0).shape) {
    shape.push_back(std::stoll(std::string(size)));
    count *= static_cast<std::size_t>(shape.back());
  }
  return Array(shape, std::vector<float>(count, 1));
}

/// What a function says or throws, in one line.
void say(const char* who, const std::function<std::string()>& function) {
  try {
    std::printf("%s: %s\n", who, function().c_str());
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", who, error.what());
  }
  std::fflush(stdout);
}

struct Program {
  Runtime runtime;
  std::string plugin, add_file, slow_file;
  Function add = runtime.load(add_file), slow = runtime.load(slow_file);
  Array x = argument_of(add), large = argument_of(slow);

  std::string added() const { return std::to_string(add(x)[0].to<float>()[0]); }

  /// What begins while the process exits does not return, and so throws nothing.
  void forever(const std::function<void()>& work) const {
    std::thread([work] {
      for (;;) work();
    }).detach();
  }

  [[noreturn]] void exit_soon() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::puts("exits");
    std::exit(0);
  }

  void keep() const {
    kept_runtime = runtime;
    kept_function = slow;
    kept_arrays = slow(large);
  }

  /// `child` runs in the child of a fork; the child must end by itself.
  void fork_and(const std::function<void()>& child) const {
    std::fflush(stdout);
    if (const pid_t id = fork(); id == 0) {
      alarm(20);
      child();
    } else {
      int status = 0;
      waitpid(id, &status, 0);
      say("parent", [&] { return added() + ", its child ended with " + std::to_string(status); });
    }
  }
};

}  // namespace

int main(int, char** argv) {
  const std::string how = argv[1];
  if (how == "fork before") {
    if (const pid_t id = fork(); id != 0) {
      int status = 0;
      waitpid(id, &status, 0);
    }
  }
  const Program program{Runtime(std::filesystem::path(argv[2])), argv[2], argv[3], argv[4]};
  program.add(program.x)[0].wait();
  if (how != "fork while compiling") program.slow(program.large)[0].wait();
  const std::map<std::string, std::function<void()>> ways = {
      {"fork before", [&] { say("process", [&] { return program.added(); }); }},
      {"fork",
       [&] {
         const Array there = program.add(program.x)[0];
         program.fork_and([&] {
           say("call", [&] { return program.added(); });
           say("array", [&] { return std::to_string(there.to<float>()[0]); });
           say("load", [&] { return program.runtime.load(program.add_file)(program.x)[0].str(); });
           say("new", [&] { return std::string(Runtime(std::filesystem::path(program.plugin)).platform()); });
           std::exit(0);
         });
       }},
      {"fork and return", [&] { program.fork_and([] {}); }},
      {"fork while compiling",
       [&] {
         std::thread compiles([&] { program.slow.compile(); });
         std::this_thread::sleep_for(std::chrono::milliseconds(5));
         program.fork_and([&] {
           say("call", [&] { return program.slow(program.large)[0].str(); });
           say("why", [&] { return "'" + program.slow.why_compiled() + "'"; });
           std::_Exit(0);
         });
         compiles.join();
       }},
      {"static", [&] { program.keep(); }},
      {"static and exit",
       [&] {
         program.keep();
         program.forever([&] { program.slow(program.large)[0].wait(); });
         program.exit_soon();
       }},
      {"exit while calling",
       [&] {
         program.forever([&] { program.slow(program.large); });
         program.forever([&] { program.add(program.x)[0].wait(); });
         program.exit_soon();
       }},
      {"exit while compiling",
       [&] {
         for (int i = 0; i < 2; ++i) program.forever([&] { program.runtime.load(program.slow_file).compile(); });
         program.exit_soon();
       }},
      {"call while exiting",
       [&] {
         kept_function = program.add;
         at_exit.work = [x = program.x] { say("call", [&] { return (*kept_function)(x)[0].str(); }); };
         std::exit(0);
       }},
  };
  ways.at(how)();
}

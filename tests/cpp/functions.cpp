// Functions called by threads, over and over: values, errors, donated and divided arrays, weights. Meanwhile they load
// the same functions, drop them, and keep and use compiled code in one file. Built with sanitizers.
//
//   functions PLUGIN ADD DIVIDED WEIGHTED EXECUTABLES
//                                     float32[3] -> float32[3], one more, its argument donated
//                                     float32[8] -> float32[8], twice, divided among four devices
//                                     float32[3] -> float32[3], times the weight {"w": (1, 2, 3)}; with its VJP
//                                     a file that is not there yet
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "jaxexp/run.h"
#include "jaxexp/runtime.h"
#include "target.h"

namespace {

using namespace jaxexp;
using Floats = std::vector<float>;

struct Files {
  std::string add, divided, weighted, executables;
};

template <class Call>
void require_error(RunError::Reason reason, const Call& call) {
  try {
    call();
  } catch (const RunError& error) {
    return tests::require(error.reason() == reason, "an error has its reason");
  }
  tests::require(false, "this call fails");
}

void use(const Runtime& runtime, const Function& add, const Function& divided, float number) {
  const Array own({3}, Floats{number, 1, 2});
  tests::require(add(own)[0].to<float>() == Floats({number + 1, 2, 3}), "one is added");
  Array there = runtime.put(own);
  for (int i = 0; i < 10; ++i) there = add(there)[0];
  tests::require(there.to<float>() == Floats({number + 10, 11, 12}), "results are arguments");
  const Array donated = there;
  static_cast<void>(add(there));
  require_error(RunError::Reason::argument, [&] { add(donated); });
  require_error(RunError::Reason::argument, [&] { add(Array({4}, Floats(4))); });
  const std::string path = add.artifact().arguments()[0].path;
  tests::require(add.call({{path, own}})[0].to<float>() == Floats({number + 1, 2, 3}), "arguments have paths");
  require_error(RunError::Reason::argument, [&] { add.call({{path, own}, {"nothing", own}}); });
  require_error(RunError::Reason::argument, [&] { add.call(std::map<std::string, Array>{}); });
  const std::vector<Array> twice = divided(Array({8}, Floats(8, number)));
  tests::require(divided(twice[0])[0].to<float>() == Floats(8, 4 * number), "parts are passed on");
  // Dropped before it is there.
  static_cast<void>(divided(twice[0]));
}

/// `add` donates its argument.
void use_weights(const Runtime& runtime, const Function& add, const Function& weighted, const std::string& artifact,
                 float number) {
  const Array x({3}, Floats(3, number));
  const Floats expected{number, 2 * number, 3 * number};
  tests::require(weighted(x)[0].to<float>() == expected, "weights are there");
  const std::vector<Array> cotangents = (*weighted.vjp())(x, Array({3}, Floats(3, 1)));
  tests::require(cotangents[0].to<float>() == Floats(3, number), "cotangents of weights are");
  tests::require(cotangents[1].to<float>() == Floats({1, 2, 3}), "and those of arguments");
  const Array w = weighted.weights().at("w");
  tests::require(w.to<float>() == Floats({1, 2, 3}), "weights have names");
  tests::require(weighted.unbound()(w, x)[0].to<float>() == expected, "weights are arguments");
  tests::require(add(w)[0].to<float>() == Floats({2, 3, 4}), "other functions take weights");
  tests::require(w.to<float>() == Floats({1, 2, 3}), "which stay what they are, whatever is donated");
  tests::require(weighted(x)[0].to<float>() == expected, "and so does the function that they are of");
  const std::string file = artifact.substr(0, artifact.rfind('.')) + ".safetensors";
  tests::require(weighted.with_weights(file)(x)[0].to<float>() == expected, "weights are in a file");
  tests::require(runtime.load(artifact)(x)[0].to<float>() == expected, "files are opened again");
  const Function other_vjp = weighted.vjp()->with_weights(file);
  tests::require(other_vjp(x, Array({3}, Floats(3, 1)))[1].to<float>() == Floats({1, 2, 3}), "VJPs get weights");
  for (const std::string& wrong : {artifact, std::string("/"), std::string("/nothing.safetensors")}) {
    bool failed = false;
    try {
      weighted.with_weights(wrong)(x);
    } catch (const WeightsError& error) {
      failed = error.file() == wrong && error.tensor().empty();
    }
    tests::require(failed, "other files are refused");
  }
}

/// What is on another device is copied, and stays, whatever the function donates.
void donate_from_elsewhere(const Runtime& runtime, const Function& add) {
  const Array x = runtime.put(Array({3}, Floats{1, 2, 3}), 1);
  for (int i = 0; i < 2; ++i) tests::require(add(x)[0].to<float>() == Floats({2, 3, 4}), "it is used where it is not");
  tests::require(x.to<float>() == Floats({1, 2, 3}), "and stays there");
}

/// Loads both functions while others call, load and compile; the code of one of them goes into the file, or comes from
/// there.
void load(const Runtime& runtime, const Files& files, float number) {
  const LoadOptions options{.devices = {}, .executables = files.executables};
  const Function add = runtime.load(files.add, options), divided = runtime.load(files.divided, options);
  use(runtime, add, divided, number);
  tests::require(add.why_compiled().empty(), "its code is in the file");
  const Function compiled = runtime.load(files.divided);
  compiled.save_executable(files.executables);
  const Function kept = runtime.load(files.divided, options);
  use(runtime, add, kept, number);
  tests::require(kept.why_compiled().empty(), "now the other one's code is there, too");
}

/// A function that threads call, each with a copy of its own: whoever is the last to drop one destroys it, while
/// results are still being computed.
void drop(const Runtime& runtime, const Files& files, bool stable) {
  auto weighted = std::make_unique<const Function>(runtime.load(files.weighted, LoadOptions{.stable = stable}));
  std::vector<std::thread> threads;
  for (int t = 1; t < 5; ++t)
    threads.emplace_back([own = std::make_unique<const Function>(*weighted), t]() mutable {
      const auto number = static_cast<float>(t);
      const Array x({3}, Floats(3, number));
      const auto vjp = own->vjp();
      const Array result = (*own)(x)[0];
      own.reset();
      tests::require(result.to<float>() == Floats({number, 2 * number, 3 * number}), "results outlive functions");
      tests::require((*vjp)(x, x)[1].to<float>() == Floats({number, 2 * number, 3 * number}), "and so do VJPs");
    });
  weighted.reset();
  for (std::thread& thread : threads) thread.join();
}

/// One thread would donate an array that others look at: they see its numbers, or that it is gone.
void look(const Runtime& runtime, const Function& add) {
  const Array x = runtime.put(Array({3}, Floats{1, 2, 3}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      try {
        if (t == 0) return tests::require(add(x)[0].to<float>() == Floats({2, 3, 4}), "one is added");
        const auto seen = x.view<float>();
        std::this_thread::yield();
        tests::require(seen[0] == 1 && seen[2] == 3, "what is seen stays");
      } catch (const RunError& error) {
        tests::require(t > 0, "what is called is there");
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  tests::require(argc == 6, "usage: functions PLUGIN ADD DIVIDED WEIGHTED EXECUTABLES");
  const Runtime runtime(std::filesystem::path(argv[1]), {{"cpu_device_count", std::int64_t{4}}});
  const Files files{argv[2], argv[3], argv[4], argv[5]};
  const Function add = runtime.load(files.add), divided = runtime.load(files.divided);
  const Function weighted = runtime.load(files.weighted);
  add.save_executable(files.executables);
  donate_from_elsewhere(runtime, add);
  // Not compiled yet: several threads call it for the first time.
  const Function first = runtime.load(files.add);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 25; ++round) {
        const auto number = static_cast<float>(t + round);
        use(runtime, round % 2 ? add : first, divided, number);
        use_weights(runtime, round % 2 ? add : first, weighted, files.weighted, number);
        if (round % 8 == t) load(runtime, files, number);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int round = 0; round < 20; ++round) drop(runtime, files, round % 2 == 0);
  for (int round = 0; round < 100; ++round) look(runtime, add);

  jaxexp_error* error = nullptr;
  tests::require(jaxexp_runtime_new("nothing.so", nullptr, 0, &error) == nullptr && error, "C has errors");
  tests::require(jaxexp_error_reason(error) == JAXEXP_ARGUMENT, "and their reasons");
  jaxexp_error_free(error);
  std::puts("all alike");
}

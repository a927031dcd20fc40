// Functions called by threads, over and over: values, errors, donated and divided arrays, weights. Built with
// sanitizers.
//
//   functions PLUGIN ADD DIVIDED WEIGHTED
//                                     float32[3] -> float32[3], one more, its argument donated
//                                     float32[8] -> float32[8], twice, divided among four devices
//                                     float32[3] -> float32[3], times the weight {"w": (1, 2, 3)}; with its VJP
#include <cstdio>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "jaxexp/run.h"
#include "jaxexp/runtime.h"
#include "target.h"

namespace {

using namespace jaxexp;
using Floats = std::vector<float>;

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

void use_weights(const Runtime& runtime, const Function& weighted, const std::string& artifact, float number) {
  const Array x({3}, Floats(3, number));
  const Floats expected{number, 2 * number, 3 * number};
  tests::require(weighted(x)[0].to<float>() == expected, "weights are there");
  const std::vector<Array> cotangents = (*weighted.vjp())(x, Array({3}, Floats(3, 1)));
  tests::require(cotangents[0].to<float>() == Floats(3, number), "cotangents of weights are");
  tests::require(cotangents[1].to<float>() == Floats({1, 2, 3}), "and those of arguments");
  const Array w = weighted.weights().at("w");
  tests::require(w.to<float>() == Floats({1, 2, 3}), "weights have names");
  tests::require(weighted.unbound()(w, x)[0].to<float>() == expected, "weights are arguments");
  const std::string file = artifact.substr(0, artifact.rfind('.')) + ".safetensors";
  tests::require(weighted.with_weights(file)(x)[0].to<float>() == expected, "weights are in a file");
  tests::require(runtime.load(artifact)(x)[0].to<float>() == expected, "files are opened again");
  for (const std::string& wrong : {artifact, std::string("/"), std::string("nothing.safetensors")}) {
    bool failed = false;
    try {
      weighted.with_weights(wrong)(x);
    } catch (const WeightsError& error) {
      failed = error.file() == wrong && error.tensor().empty() && wrong != "nothing.safetensors";
    } catch (const std::system_error&) {
      failed = wrong == "nothing.safetensors";
    }
    tests::require(failed, "other files are refused");
  }
}

}  // namespace

int main(int argc, char** argv) {
  tests::require(argc == 5, "usage: functions PLUGIN ADD DIVIDED WEIGHTED");
  const Runtime runtime(std::filesystem::path(argv[1]), {{"cpu_device_count", std::int64_t{4}}});
  const Function add = runtime.load(argv[2]), divided = runtime.load(argv[3]), weighted = runtime.load(argv[4]);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 25; ++round) {
        use(runtime, add, divided, static_cast<float>(t + round));
        use_weights(runtime, weighted, argv[4], static_cast<float>(t + round));
      }
    });
  for (std::thread& thread : threads) thread.join();

  jaxexp_error* error = nullptr;
  tests::require(jaxexp_runtime_new("nothing.so", nullptr, 0, &error) == nullptr && error, "C has errors");
  tests::require(jaxexp_error_reason(error) == JAXEXP_ARGUMENT, "and their reasons");
  jaxexp_error_free(error);
  std::puts("all alike");
}

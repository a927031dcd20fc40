// What programs do beside calls: results by pointer, callbacks, tensors of DLPack, options, a log.
//
//   arrays PLUGIN ADD DIVIDED SLOW INT4 EXECUTABLES
//                                float32[3] -> float32[3], one more, its argument donated
//                                float32[8] -> float32[8], twice, divided among four devices
//                                float32[N, N] -> float32[N, N], slowly
//                                float32[5] -> int4[5]
//                                a file that is not there yet
#include <dlpack/dlpack.h>
#include <jaxexp/runtime.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "target.h"

namespace {

using namespace jaxexp;
using Floats = std::vector<float>;
using tests::require;

Floats seen(const Array& array) {
  const auto view = array.view<float>();
  return {view.begin(), view.end()};
}

std::string refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const RunError& error) {
    return error.what();
  }
  return {};
}

void pointers(const Runtime& runtime, const Function& add, const Function& divided, const Function& int4) {
  const Floats own{1, 2, 3};
  const Array host({3}, own);
  require(host.view<float>().size() == 3 && host.is_ready(), "numbers of the host have an address");
  Array result = add(host)[0];
  require(seen(result) == Floats({2, 3, 4}), "results have one");
  require(result.data() == result.data(), "which does not change");
  require(refused([&] { result.view<double>(); }) == "the array is float32[3], and not of dtype float64",
          "views have the array's dtype");
  const Array empty({0}, Floats());
  require(empty.view<float>().empty(), "nothing has a view");

  // Donated: not while it is used.
  const Array used = result, copied = runtime.put(host);
  const auto* const before = used.view<float>().data();
  require(
      seen(add(used)[0]) == Floats({3, 4, 5}) && seen(used) == Floats({2, 3, 4}) && used.view<float>().data() == before,
      "no call donates what is used");
  require(copied.to<float>() == own && seen(add(copied)[0]) == Floats({2, 3, 4}), "a copy is no use");
  require(refused([&] { copied.data(); }) != "", "what was donated is gone");
  require(refused([&] { copied.to<float>(); }) != "", "and cannot be copied");

  const Array parts = divided(Array({8}, Floats(8, 3)))[0];
  require(seen(parts) == Floats(8, 6) && parts.data() == parts.data(), "parts are put together once");
  require(parts.is_ready(), "and are there");
  const Array small = int4(Array({5}, Floats{-2, -1, 0, 1, 2}))[0];
  const auto* const bytes = static_cast<const signed char*>(small.data());
  for (int i = 0; i < 5; ++i) require((bytes[i] & 15) == ((i - 2) & 15), "numbers of less than a byte have one each");
}

void callbacks(const Runtime& runtime, const Function& slow, const Function& divided) {
  constexpr std::int64_t n = 300;
  const Array x = runtime.put(Array({n, n}, Floats(n * n, 0.001f)));
  for (int round = 0; round < 20; ++round) {
    const Array result = slow(x)[0];
    std::promise<bool> called;
    result.on_ready([&](const RunError* error) { called.set_value(error == nullptr); });
    require(called.get_future().get() && result.is_ready(), "a callback comes when the numbers are there");
  }
  std::atomic<int> calls = 0;
  divided(Array({8}, Floats(8)))[0].on_ready([&](const RunError*) { ++calls; });
  Array(1.0f).on_ready([&](const RunError* error) { calls += error ? 100 : 1; });
  while (calls < 2) std::this_thread::yield();
  require(calls == 2, "one for all parts; one for numbers of the host");
}

struct Tensor {
  explicit Tensor(DLDataType dtype, std::vector<std::int64_t> sizes, void* data) : shape(std::move(sizes)) {
    tensor.version = {1, 0};
    tensor.dl_tensor = {data, {kDLCPU, 0}, static_cast<std::int32_t>(shape.size()), dtype, shape.data(), nullptr, 0};
    tensor.manager_ctx = this;
    tensor.deleter = [](DLManagedTensorVersioned* self) { ++static_cast<Tensor*>(self->manager_ctx)->deleted; };
  }
  std::vector<std::int64_t> shape;
  DLManagedTensorVersioned tensor{};
  std::atomic<int> deleted = 0;
};

constexpr DLDataType f32{kDLFloat, 32, 1};

void tensors_in(const Runtime& runtime, const Function& add) {
  alignas(64) float numbers[] = {1, 2, 3, 4, 5, 6};
  Tensor whole(f32, {3}, numbers);
  {
    const Array x = Array::from_dlpack(&whole.tensor);
    require(x.data() == numbers && x.str() == "float32[3]", "tensors are not copied");
    const Array there = runtime.put(x);
    require(there.data() == numbers, "nor by a plugin for the CPU");
    require(seen(add(x)[0]) == Floats({2, 3, 4}) && numbers[0] == 1, "nor written to");
    require(whole.deleted == 0, "they are kept");
  }
  while (whole.deleted == 0) std::this_thread::yield();
  require(whole.deleted == 1, "until nothing needs them");

  std::int64_t strides[] = {2};
  Tensor gaps(f32, {3}, numbers);
  gaps.tensor.dl_tensor.strides = strides;
  gaps.tensor.dl_tensor.byte_offset = sizeof(float);
  require(seen(Array::from_dlpack(&gaps.tensor)) == Floats({2, 4, 6}) && gaps.deleted == 1, "gaps are left out");
  std::int64_t columns[] = {1, 2};
  Tensor transposed(f32, {2, 3}, numbers);
  transposed.tensor.dl_tensor.strides = columns;
  require(seen(Array::from_dlpack(&transposed.tensor)) == Floats({1, 3, 5, 2, 4, 6}), "columns become rows");

  Tensor wrong(f32, {3}, numbers);
  const auto refuses = [&](const char* words, const auto& change) {
    const DLManagedTensorVersioned right = wrong.tensor;
    change(wrong.tensor);
    for (const std::string& said :
         {refused([&] { Array::from_dlpack(&wrong.tensor); }), refused([&] { runtime.from_dlpack(&wrong.tensor); })})
      require(said.find(words) != said.npos && wrong.deleted == 0, words);
    wrong.tensor = right;
  };
  refuses("on device 0 of type 2", [](auto& it) { it.dl_tensor.device = {kDLCUDA, 0}; });
  refuses("code 2, 32 bits and 4 lanes", [](auto& it) { it.dl_tensor.dtype.lanes = 4; });
  refuses("of version 2", [](auto& it) { it.version.major = 2; });
  refuses("at a null pointer", [](auto& it) { it.dl_tensor.data = nullptr; });
  refuses("a byte for each number", [](auto& it) { it.dl_tensor.dtype = {kDLInt, 4, 1}; });
  require(refused([] { Array::from_dlpack(static_cast<DLManagedTensor*>(nullptr)); }) == "the DLPack tensor is null",
          "nothing is no tensor");
  Tensor also(f32, {3}, numbers);
  require(seen(add(runtime.from_dlpack(&also.tensor))[0]) == Floats({2, 3, 4}),
          "a runtime takes those of the host, too");
  require(refused([&] { runtime.stream(kDLCUDA, 0); }).find("or on a device of the plugin") != std::string::npos,
          "only devices of CUDA and ROCm have streams");
}

void tensors_out(const Function& add, const Function& divided, const Function& int4) {
  DLManagedTensorVersioned* tensor = nullptr;
  const void* data = nullptr;
  {
    const Array result = add(Array({3}, Floats{1, 2, 3}))[0];
    tensor = result.to_dlpack();
    data = result.data();
  }
  const DLTensor& it = tensor->dl_tensor;
  require(it.data == data && std::memcmp(data, Floats({2, 3, 4}).data(), 12) == 0, "results are not copied, and stay");
  require(it.ndim == 1 && it.shape[0] == 3 && it.strides[0] == 1 && it.byte_offset == 0, "they have their shape");
  require(it.device.device_type == kDLCPU && it.dtype.code == kDLFloat && it.dtype.bits == 32, "and dtype");
  require(tensor->version.major == 1 && tensor->flags == DLPACK_FLAG_BITMASK_READ_ONLY, "and are only read");
  require(seen(Array::from_dlpack(tensor)) == Floats({2, 3, 4}), "an array takes it back");

  tensor = divided(Array({8}, Floats(8, 3)))[0].to_dlpack();
  require(static_cast<float*>(tensor->dl_tensor.data)[7] == 6, "parts are put together");
  tensor->deleter(tensor);
  DLManagedTensor* const old = Array({2, 1}, Floats{1, 2}).to_unversioned_dlpack();
  require(Array::from_dlpack(old).to<float>() == Floats({1, 2}), "older libraries get and give tensors, too");
  const Array small = int4(Array({5}, Floats(5, 3)))[0];
  require(refused([&] { small.to_unversioned_dlpack(); }).find("take a versioned tensor") != std::string::npos,
          "but no numbers of less than a byte");
  const Array again = Array::from_dlpack(small.to_dlpack());
  require(again.str() == "int4[5]" && *static_cast<const char*>(again.data()) == 3, "which others have");
}

void options(const Runtime& runtime, const char* add, const std::string& executables) {
  std::vector<std::string> lines;
  runtime.set_log([&](const std::string& line) { lines.push_back(line); });
  const std::filesystem::path file(add);
  const LoadOptions fast{
      .compile_options = {{"xla_cpu_enable_fast_math", true}, {"xla_backend_optimization_level", std::int64_t{1}}}};
  const Function function = runtime.load(file, fast);
  const Array x({3}, Floats{1, 2, 3});
  require(seen(function(x)[0]) == Floats({2, 3, 4}), "functions have options");
  require(lines.size() == 1 && lines[0].find(": compiled in ") != std::string::npos, "compiling is told");
  function.save_executable(executables);
  LoadOptions kept = fast;
  kept.executables = executables;
  kept.warm_up = false;
  const Function again = runtime.load(file, kept);
  again.compile();
  require(lines.size() == 2 && lines[1].find(": has code from the file of executables, in ") != std::string::npos,
          "and so is code from a file, for the same options");
  const Function other = runtime.load(file, {.executables = executables, .warm_up = false});
  other.compile();
  require(
      lines.size() == 3 && lines[2].find("not taken from the file of executables: compile options") != lines[2].npos,
      "and that it is for others");
  runtime.set_log(nullptr);
  const auto fails = [&](const Options& options) {
    return refused([&] { runtime.load(file, {.compile_options = options}).compile(); });
  };
  require(fails({{"xla_no_such_option", true}}).find("xla_no_such_option") != std::string::npos, "unknown names fail");
  require(fails({{"xla_cpu_enable_fast_math", std::string("perhaps")}}) != "", "and so do values of another type");
  require(lines.size() == 3, "nobody hears what nobody wants to");
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 7, "usage: arrays PLUGIN ADD DIVIDED SLOW INT4 EXECUTABLES");
  const Runtime runtime(std::filesystem::path(argv[1]), {{"cpu_device_count", std::int64_t{4}}});
  const auto load = [&](int i) { return runtime.load(std::filesystem::path(argv[i])); };
  const Function add = load(2), divided = load(3), slow = load(4), int4 = load(5);
  pointers(runtime, add, divided, int4);
  callbacks(runtime, slow, divided);
  tensors_in(runtime, add);
  tensors_out(add, divided, int4);
  options(runtime, argv[2], argv[6]);
  std::puts("all alike");
}

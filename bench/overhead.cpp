// Calls of a function by hand-written calls of the PJRT C API, and by the runtime: what the runtime adds.
//
//   overhead PLUGIN ARTIFACT WHO HOW THREADS CALLS
//                                          WHO: raw or runtime; HOW: wait, read or view
#include <jaxexp/runtime.h>
#include <pjrt_c_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ones.h"

#ifdef __linux__
#include <dlfcn.h>
#endif

namespace {

using namespace jaxexp;
using namespace jaxexp::bench;
using Clock = std::chrono::steady_clock;

/// A function with the plugin's functions only, which everybody would write who needs no more.
class Raw {
 public:
  Raw(const char* plugin, const Artifact& artifact, const std::vector<Array>& arguments) {
    auto* const entry = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(dlopen(plugin, RTLD_NOW), "GetPjrtApi"));
    api_ = entry();
    PJRT_Client_Create_Args made{};
    made.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE;
    check(api_->PJRT_Client_Create(&made));
    PJRT_Client_AddressableDevices_Args devices{};
    devices.struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE;
    devices.client = made.client;
    check(api_->PJRT_Client_AddressableDevices(&devices));
    PJRT_Program program{};
    program.struct_size = PJRT_Program_STRUCT_SIZE;
    const auto module = artifact.module();
    program.code = const_cast<char*>(reinterpret_cast<const char*>(module.data()));
    program.code_size = module.size();
    program.format = "mlir";
    program.format_size = 4;
    // xla.CompileOptionsProto: executable_build_options { num_replicas: 1 num_partitions: 1 }
    const std::string options = "\x1a\x04\x20\x01\x28\x01";
    PJRT_Client_Compile_Args compiled{};
    compiled.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE;
    compiled.client = made.client;
    compiled.program = &program;
    compiled.compile_options = options.data();
    compiled.compile_options_size = options.size();
    check(api_->PJRT_Client_Compile(&compiled));
    executable_ = compiled.executable;
    for (const Array& argument : arguments) {
      PJRT_Client_BufferFromHostBuffer_Args buffer{};
      buffer.struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE;
      buffer.client = made.client;
      buffer.data = argument.data();
      buffer.type = PJRT_Buffer_Type_F32;
      buffer.dims = argument.shape().data();
      buffer.num_dims = argument.shape().size();
      buffer.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
      buffer.device = devices.addressable_devices[0];
      check(api_->PJRT_Client_BufferFromHostBuffer(&buffer));
      destroy(buffer.done_with_host_buffer);
      inputs_.push_back(buffer.buffer);
    }
  }

  /// Returns the first number of the first result.
  float call(const std::string& how, std::vector<float>& numbers) const {
    PJRT_ExecuteOptions options{};
    options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
    PJRT_Buffer* result = nullptr;
    PJRT_Buffer** results = &result;
    PJRT_Buffer* const* inputs = inputs_.data();
    PJRT_LoadedExecutable_Execute_Args executed{};
    executed.struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE;
    executed.executable = executable_;
    executed.options = &options;
    executed.argument_lists = &inputs;
    executed.num_devices = 1;
    executed.num_args = inputs_.size();
    executed.output_lists = &results;
    check(api_->PJRT_LoadedExecutable_Execute(&executed));
    float number = 0;
    if (how == "read") {
      PJRT_Buffer_ToHostBuffer_Args copied{};
      copied.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE;
      copied.src = result;
      copied.dst = numbers.data();
      copied.dst_size = numbers.size() * sizeof(float);
      check(api_->PJRT_Buffer_ToHostBuffer(&copied));
      wait(copied.event);
      number = numbers[0];
    } else {
      PJRT_Buffer_ReadyEvent_Args ready{};
      ready.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE;
      ready.buffer = result;
      check(api_->PJRT_Buffer_ReadyEvent(&ready));
      wait(ready.event);
    }
    if (how == "view") {
      PJRT_Buffer_UnsafePointer_Args at{};
      at.struct_size = PJRT_Buffer_UnsafePointer_Args_STRUCT_SIZE;
      at.buffer = result;
      check(api_->PJRT_Buffer_UnsafePointer(&at));
      number = *reinterpret_cast<const float*>(at.buffer_pointer);
    }
    PJRT_Buffer_Destroy_Args destroyed{};
    destroyed.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE;
    destroyed.buffer = result;
    check(api_->PJRT_Buffer_Destroy(&destroyed));
    return number;
  }

 private:
  static void check(const PJRT_Error* error) { require(error == nullptr, "the plugin does not fail"); }
  void destroy(PJRT_Event* event) const {
    PJRT_Event_Destroy_Args destroyed{};
    destroyed.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE;
    destroyed.event = event;
    check(api_->PJRT_Event_Destroy(&destroyed));
  }
  void wait(PJRT_Event* event) const {
    PJRT_Event_Await_Args awaited{};
    awaited.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE;
    awaited.event = event;
    check(api_->PJRT_Event_Await(&awaited));
    destroy(event);
  }

  const PJRT_Api* api_;
  PJRT_LoadedExecutable* executable_;
  std::vector<PJRT_Buffer*> inputs_;
};

float called(const Function& function, const std::vector<Array>& arguments, const std::string& how,
             std::vector<float>& numbers) {
  const std::vector<Array> results = function.call(arguments);
  if (how == "view") return results[0].view<float>()[0];
  if (how == "wait") return results[0].wait(), 0.0f;
  results[0].copy_to(numbers.data());
  return numbers[0];
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 7, "usage: overhead PLUGIN ARTIFACT raw|runtime wait|read|view THREADS CALLS");
  const std::string who = argv[3], how = argv[4];
  const int threads = std::atoi(argv[5]), calls = std::atoi(argv[6]);
  std::ifstream file(argv[2], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const Artifact artifact({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  std::vector<Array> arguments = arrays_like(artifact.arguments());
  const std::size_t size = arrays_like(artifact.results())[0].size();
  // One of the two: the threads of another client would stand in the way.
  std::optional<Raw> raw;
  std::optional<Runtime> runtime;
  std::optional<Function> function;
  if (who == "raw") {
    raw.emplace(argv[1], artifact, arguments);
  } else {
    runtime.emplace(std::filesystem::path(argv[1]));
    function = runtime->load(artifact);
    for (Array& argument : arguments) argument = runtime->put(argument);
    static_cast<void>(function->call(arguments)[0].view<float>());
  }

  std::vector<double> of_one(static_cast<std::size_t>(calls));
  const auto run = [&](bool is_first) {
    std::vector<float> numbers(size);
    for (int i = 0; i < calls; ++i) {
      const auto begin = Clock::now();
      const float number = raw ? raw->call(how, numbers) : called(*function, arguments, how, numbers);
      if (is_first)
        of_one[static_cast<std::size_t>(i)] = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
      require(std::isfinite(number), "a number was read");
    }
  };
  const auto begin = Clock::now();
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run, false);
  run(true);
  for (std::thread& thread : others) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(of_one.begin(), of_one.end());
  std::printf("%s, %s, %d threads: median %.0f ns, %.0f calls/s\n", who.c_str(), how.c_str(), threads,
              of_one[of_one.size() / 2], threads * calls / seconds);
}

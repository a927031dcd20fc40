// Compiling, loading and running.
#include "runtime/plugin/executable.h"

#include <utility>

namespace jaxexp::runtime {
namespace {

PJRT_LoadedExecutable* compile(const Client& client, std::span<const std::uint8_t> module, std::string_view options) {
  constexpr std::string_view format = "mlir";
  // Only functions that return a program write to it.
  auto* const code = const_cast<char*>(reinterpret_cast<const char*>(module.data()));
  const auto program = JAXEXP_PJRT_STRUCT(PJRT_Program, .code = code, .code_size = module.size(),
                                          .format = format.data(), .format_size = format.size());
  return JAXEXP_PJRT_CALL(client.api(), PJRT_Client_Compile, "compile the module", .client = client.get(),
                          .program = &program, .compile_options = options.data(),
                          .compile_options_size = options.size())
      .executable;
}

PJRT_LoadedExecutable* deserialize(const Client& client, std::span<const std::uint8_t> code) {
  return JAXEXP_PJRT_CALL(client.api(), PJRT_Executable_DeserializeAndLoad, "load compiled code",
                          .client = client.get(), .serialized_executable = reinterpret_cast<const char*>(code.data()),
                          .serialized_executable_size = code.size())
      .loaded_executable;
}

}  // namespace

Executable::Executable(std::shared_ptr<const Client> client, std::span<const std::uint8_t> module,
                       std::string_view options)
    : Executable(client, compile(*client, module, options)) {}

Executable Executable::from_code(std::shared_ptr<const Client> client, std::span<const std::uint8_t> code) {
  PJRT_LoadedExecutable* const loaded = deserialize(*client, code);
  return Executable(std::move(client), loaded);
}

Executable::Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* loaded)
    : client_(std::move(client)), loaded_(loaded, {client_->api()}), executable_(nullptr, {client_->api()}) {
  const Api& api = client_->api();
  executable_.reset(JAXEXP_PJRT_CALL(api, PJRT_LoadedExecutable_GetExecutable, "describe what it compiled",
                                     .loaded_executable = loaded)
                        .executable);
  results_ =
      JAXEXP_PJRT_CALL(api, PJRT_Executable_NumOutputs, "count results", .executable = executable_.get()).num_outputs;
  watch_exit();
}

std::vector<std::uint8_t> Executable::serialize() const {
  const auto made = JAXEXP_PJRT_CALL(client_->api(), PJRT_Executable_Serialize, "serialize what it compiled",
                                     .executable = executable_.get());
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(made.serialized_bytes);
  std::vector<std::uint8_t> code(bytes, bytes + made.serialized_bytes_size);
  made.serialized_executable_deleter(made.serialized_executable);
  return code;
}

HloShardings Executable::shardings() const {
  auto program = JAXEXP_PJRT_STRUCT(PJRT_Program);
  const auto fetch = [&] {
    JAXEXP_PJRT_CALL(client_->api(), PJRT_Executable_OptimizedProgram, "show what it compiled",
                     .executable = executable_.get(), .program = &program);
  };
  fetch();  // how large it is
  std::string code(program.code_size, '\0');
  program.code = code.data();
  fetch();
  return read_hlo_shardings(code, {program.format, program.format_size});
}

void Executable::run(std::span<PJRT_Buffer* const> arguments, std::size_t nr_devices,
                     std::span<const std::int64_t> keep, std::span<std::shared_ptr<const Buffer>> results,
                     bool waits) const {
  constexpr std::string_view task = "run the function";
  const Api& api = client_->api();
  auto options = JAXEXP_PJRT_STRUCT(PJRT_ExecuteOptions, .non_donatable_input_indices = keep.data(),
                                    .num_non_donatable_input_indices = keep.size());
  const std::size_t nr_arguments = arguments.size() / nr_devices;
  Few<PJRT_Buffer* const*, 4> inputs(nr_devices);
  Few<PJRT_Buffer*, 16> made(nr_devices * results_);
  Few<PJRT_Buffer**, 4> outputs(nr_devices);
  Few<PJRT_Event*, 4> completed(results_ == 0 || waits ? nr_devices : 0);
  for (std::size_t d = 0; d < nr_devices; ++d) {
    inputs[d] = arguments.data() + d * nr_arguments;
    outputs[d] = made.all().data() + d * results_;
  }
  const PluginCall call;
  JAXEXP_PJRT_CALL(api, PJRT_LoadedExecutable_Execute, task, .executable = loaded_.get(), .options = &options,
                   .argument_lists = inputs.all().data(), .num_devices = nr_devices, .num_args = nr_arguments,
                   .output_lists = outputs.all().data(),
                   .device_complete_events = completed.all().empty() ? nullptr : completed.all().data());
  const bool is_first = !has_run_->load(std::memory_order_relaxed) && !has_run_->exchange(true);
  if (is_first) watch_exit();  // and once more, when it has been computed
  const auto done = [&] {
    return [call, is_first](const RunError*) {
      if (is_first) watch_exit();
    };
  };

  for (std::size_t i = 0; i < made.all().size(); ++i) {
    auto buffer = std::make_shared<Buffer>(client_, made[i]);
    // All results of a device are there at the same time. Mostly, programs wait for the first one.
    if (i % results_ == 0 && !buffer->knows_ready()) buffer->when_ready(done());
    results[i] = std::move(buffer);
  }
  if (waits) {
    for (PJRT_Event* const event : completed.all()) api.wait(event, task);
    return done()(nullptr);
  }
  for (PJRT_Event* const event : completed.all()) api.when_ready(event, task, done());
}

}  // namespace jaxexp::runtime

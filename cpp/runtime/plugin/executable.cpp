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

Executable::Outputs Executable::run(const Inputs& arguments, std::span<const std::int64_t> keep) const {
  auto options = JAXEXP_PJRT_STRUCT(PJRT_ExecuteOptions, .non_donatable_input_indices = keep.data(),
                                    .num_non_donatable_input_indices = keep.size());
  std::vector<PJRT_Buffer* const*> inputs;
  for (const auto& list : arguments) inputs.push_back(list.data());
  std::vector<std::vector<PJRT_Buffer*>> made(arguments.size(), std::vector<PJRT_Buffer*>(results_));
  std::vector<PJRT_Buffer**> outputs;
  for (auto& list : made) outputs.push_back(list.data());

  std::vector<PJRT_Event*> completed(arguments.size());
  const PluginCall call;
  JAXEXP_PJRT_CALL(client_->api(), PJRT_LoadedExecutable_Execute, "run the function", .executable = loaded_.get(),
                   .options = &options, .argument_lists = inputs.data(), .num_devices = arguments.size(),
                   .num_args = arguments.front().size(), .output_lists = outputs.data(),
                   .device_complete_events = completed.data());
  const bool is_first = !has_run_->exchange(true);
  for (PJRT_Event* const event : completed)
    client_->api().when_ready(event, "run the function", [call, is_first](const RunError*) {
      if (is_first) watch_exit();
    });

  Outputs results;
  for (const auto& list : made) {
    auto& owned = results.emplace_back();
    for (PJRT_Buffer* buffer : list) owned.push_back(std::make_shared<const Buffer>(client_, buffer));
  }
  return results;
}

}  // namespace jaxexp::runtime

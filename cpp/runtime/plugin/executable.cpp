// Executables hold their client, which has to outlive them.
#include "runtime/plugin/executable.h"

#include <utility>

namespace jaxexp::runtime {

void Executable::Destroy::operator()(PJRT_LoadedExecutable* executable) const noexcept {
  JAXEXP_PJRT_ARGUMENTS(PJRT_LoadedExecutable_Destroy_Args, arguments);
  arguments.executable = executable;
  client->api().call_silently(&PJRT_Api::PJRT_LoadedExecutable_Destroy, arguments);
}

void Executable::Destroy::operator()(PJRT_Executable* executable) const noexcept {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Executable_Destroy_Args, arguments);
  arguments.executable = executable;
  client->api().call_silently(&PJRT_Api::PJRT_Executable_Destroy, arguments);
}

namespace {

PJRT_LoadedExecutable* compile(const Client& client, std::span<const std::uint8_t> module, std::string_view options) {
  constexpr std::string_view format = "mlir";
  JAXEXP_PJRT_ARGUMENTS(PJRT_Program, program);
  // Only functions that return a program write to it.
  program.code = const_cast<char*>(reinterpret_cast<const char*>(module.data()));
  program.code_size = module.size();
  program.format = format.data();
  program.format_size = format.size();
  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_Compile_Args, compilation);
  compilation.client = client.get();
  compilation.program = &program;
  compilation.compile_options = options.data();
  compilation.compile_options_size = options.size();
  client.api().call(&PJRT_Api::PJRT_Client_Compile, compilation, "compile the module");
  return compilation.executable;
}

PJRT_LoadedExecutable* deserialize(const Client& client, std::span<const std::uint8_t> code) {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Executable_DeserializeAndLoad_Args, arguments);
  arguments.client = client.get();
  arguments.serialized_executable = reinterpret_cast<const char*>(code.data());
  arguments.serialized_executable_size = code.size();
  client.api().call(&PJRT_Api::PJRT_Executable_DeserializeAndLoad, arguments, "load compiled code");
  return arguments.loaded_executable;
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
    : client_(std::move(client)),
      loaded_(loaded, Destroy{client_.get()}),
      executable_(nullptr, Destroy{client_.get()}) {
  const Api& api = client_->api();
  JAXEXP_PJRT_ARGUMENTS(PJRT_LoadedExecutable_GetExecutable_Args, description);
  description.loaded_executable = loaded_.get();
  api.call(&PJRT_Api::PJRT_LoadedExecutable_GetExecutable, description, "describe what it compiled");
  executable_.reset(description.executable);
  JAXEXP_PJRT_ARGUMENTS(PJRT_Executable_NumOutputs_Args, outputs);
  outputs.executable = executable_.get();
  api.call(&PJRT_Api::PJRT_Executable_NumOutputs, outputs, "count results");
  results_ = outputs.num_outputs;
}

std::vector<std::uint8_t> Executable::serialize() const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Executable_Serialize_Args, arguments);
  arguments.executable = executable_.get();
  client_->api().call(&PJRT_Api::PJRT_Executable_Serialize, arguments, "serialize what it compiled");
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(arguments.serialized_bytes);
  std::vector<std::uint8_t> code(bytes, bytes + arguments.serialized_bytes_size);
  arguments.serialized_executable_deleter(arguments.serialized_executable);
  return code;
}

HloShardings Executable::shardings() const {
  constexpr std::string_view task = "show what it compiled";
  JAXEXP_PJRT_ARGUMENTS(PJRT_Program, program);
  JAXEXP_PJRT_ARGUMENTS(PJRT_Executable_OptimizedProgram_Args, arguments);
  arguments.executable = executable_.get();
  arguments.program = &program;
  client_->api().call(&PJRT_Api::PJRT_Executable_OptimizedProgram, arguments, task);  // how large it is
  std::string code(program.code_size, '\0');
  program.code = code.data();
  client_->api().call(&PJRT_Api::PJRT_Executable_OptimizedProgram, arguments, task);
  return read_hlo_shardings(code, {program.format, program.format_size});
}

Executable::Outputs Executable::run(const Inputs& arguments, std::span<const std::int64_t> keep) const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_ExecuteOptions, options);
  options.non_donatable_input_indices = keep.data();
  options.num_non_donatable_input_indices = keep.size();
  std::vector<PJRT_Buffer* const*> inputs;
  for (const auto& list : arguments) inputs.push_back(list.data());
  std::vector<std::vector<PJRT_Buffer*>> made(arguments.size(), std::vector<PJRT_Buffer*>(results_));
  std::vector<PJRT_Buffer**> outputs;
  for (auto& list : made) outputs.push_back(list.data());

  JAXEXP_PJRT_ARGUMENTS(PJRT_LoadedExecutable_Execute_Args, execution);
  execution.executable = loaded_.get();
  execution.options = &options;
  execution.argument_lists = inputs.data();
  execution.num_devices = arguments.size();
  execution.num_args = arguments.front().size();
  execution.output_lists = outputs.data();
  client_->api().call(&PJRT_Api::PJRT_LoadedExecutable_Execute, execution, "run the function");

  Outputs results;
  for (const auto& list : made) {
    auto& owned = results.emplace_back();
    for (PJRT_Buffer* buffer : list) owned.push_back(std::make_shared<const Buffer>(client_, buffer));
  }
  return results;
}

}  // namespace jaxexp::runtime

// Serialized functions, run on any PJRT plugin without Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "jaxexp/array.h"
#include "jaxexp/artifact.h"
#include "jaxexp/call_times.h"
#include "jaxexp/run_error.h"
#include "jaxexp/weights_error.h"

struct PJRT_Api;           // of the PJRT C API
struct XLA_FFI_CallFrame;  // of the C API of XLA's FFI: xla/ffi/api/c_api.h
struct XLA_FFI_Error;

namespace jaxexp {

namespace runtime {
class Bound;
class Client;
}  // namespace runtime

/// Is called with each file that a function uses, and with its bytes, before anything looks at them: the artifact or
/// the archive, if it is loaded from a file, files of weights, their indices, and the file of executables. They are
/// read as a whole for this, at once, and not opened again. What it throws, as where nobody signed the file, whatever
/// opens the file throws.
using CheckFile = std::function<void(const std::filesystem::path& file, std::span<const std::uint8_t> bytes)>;

/// A function that is ready to be called. A copy is the same function. Several threads may call one at once.
///
/// Where a process is forked after its first Runtime was made, the child can use no Runtime: everything that needs a
/// plugin throws RunError there. exit() waits up to a minute for calls of other threads, and what they began to
/// compute; a call that begins later does not return.
class Function {
 public:
  /// What it takes and returns: names, dtypes, shapes, shardings, paths in the trees. Weights are its first arguments.
  const Artifact& artifact() const;

  /// What a call takes: the arguments of the artifact, without the weights that were loaded with it. Their paths are
  /// those of a call in Python: where weights were loaded, "args[0]" is the first argument after them.
  std::vector<Value> arguments() const;

  /// What a call returns: the results of the artifact.
  std::vector<Value> results() const { return artifact().results(); }

  /// Compiles, which the first call does otherwise: for all sets of sizes that were listed (`LoadOptions::sizes`). Then
  /// it opens the files of weights, and calls the function once for each of them (`LoadOptions::warm_up`).
  /// Throws RunError, also where the function has symbolic dimensions and no sizes are listed; or WeightsError.
  void compile() const;
  /// The same for the sizes of all dimension variables, as in {{"batch", 8}}. A function with symbolic dimensions is
  /// compiled for each set of sizes that it is called with, and keeps the code of the last 64. Throws RunError, also
  /// where another variable is named, or one is missing.
  void compile(const std::map<std::string, std::int64_t>& sizes) const;

  /// Adds the compiled code to a file, or makes the file: `LoadOptions::executables` of a later process. Does nothing
  /// where the file has it. With symbolic dimensions, that is the code of all sizes that the function keeps. Throws
  /// RunError, DeserializationError where the file is something else, or std::system_error.
  void save_executable(const std::filesystem::path& file) const;

  /// Why the function was compiled in this process, in spite of `LoadOptions::executables` or `compile_cache`; empty
  /// where code from there is used, where neither was given, and before the function is compiled. With symbolic
  /// dimensions, it is about the sizes that were used last.
  std::string why_compiled() const;

  /// Calls the function with its arguments in the order of `arguments()`, and returns its results in the order of
  /// `results()`. They are on the function's devices and may still be computed: reading them waits.
  ///
  /// Arguments on other devices, or divided in another way, are copied by way of the host. Where the function donates
  /// an argument that is on the right device, its memory is reused, and the array is gone afterwards, unless it is one
  /// of `weights()`.
  ///
  /// The first call, or `compile()`, opens the files of weights. Weights stay on the devices, and are never donated.
  ///
  /// Throws RunError where an argument does not fit, or the plugin fails; WeightsError where a file of weights is
  /// missing, cannot be opened, is damaged, or another one than the function was saved with.
  std::vector<Array> call(std::span<const Array> arguments) const;
  std::vector<Array> operator()(std::initializer_list<Array> arguments) const {
    return call({arguments.begin(), arguments.size()});
  }
  template <class... Arrays>
  std::vector<Array> operator()(const Arrays&... arguments) const {
    return (*this)({arguments...});
  }

  /// The same, which waits for the results, and says how long what took.
  std::vector<Array> call(std::span<const Array> arguments, CallTimes& times) const;

  /// The same, which waits for the results, and copies each of them to memory of the caller's. It has the size that the
  /// result has there, Array::size_bytes(), or RunError is thrown.
  void call_into(std::span<const Array> arguments, std::span<const std::span<std::byte>> results) const;

  /// The same as `call`, with arguments by their paths, such as "args[0]['weights']". Throws RunError, also where there
  /// is no argument of that path, or one is missing.
  std::vector<Array> call(const std::map<std::string, Array>& arguments) const;

  /// The function that takes the arguments and then the cotangents of the results, and returns the cotangents of the
  /// arguments, those of weights too. It shares the weights. Nothing where the artifact has none. Throws RunError.
  std::optional<Function> vjp() const;

  /// The weights on the devices, by their names; none where the function has none. Throws as `call` does.
  ///
  /// They are the arrays that calls use, not copies, and stay what they are: a call that would donate one of them
  /// copies it first. They may be used when the function is gone; those of a member of an Archive in the caller's
  /// memory as long as that is there.
  std::map<std::string, Array> weights() const;
  /// The same function with the weights of another file of tensors, or index of several ones
  /// (".safetensors.index.json"). The first call opens it, and throws WeightsError where that fails; with `check_file`,
  /// this does. Nothing is compiled again. Throws RunError where the function takes no weights.
  Function with_weights(const std::filesystem::path& file, const CheckFile& check_file = {}) const;
  /// The same function, which takes its weights as arguments. Nothing is compiled again.
  Function unbound() const;

 private:
  friend class Runtime;
  explicit Function(std::shared_ptr<const runtime::Bound> bound) : bound_(std::move(bound)) {}
  std::vector<Array> called(std::span<const runtime::Numbers* const> arguments, CallTimes* times) const;

  std::shared_ptr<const runtime::Bound> bound_;
};

/// Options of plugins and of XLA: names and types are their own.
using Options = std::map<std::string, std::variant<std::string, std::int64_t, float, bool>>;

struct LoadOptions {
  /// Numbers below `Runtime::nr_devices()`, as many as the function is for; none: the first ones.
  std::vector<std::size_t> devices = {};
  /// A file that `Function::save_executable` wrote. It has native code: name only a file that you trust like a program.
  /// What does not fit this plugin and this machine is not used, and the function is compiled as always.
  std::filesystem::path executables = {};
  /// A folder in which processes share compiled code, which is made where it is missing: code that another process has
  /// put there is used, and what this one compiles is added. It is native code: name only a folder where nobody else
  /// can write whom you would not let run programs as you. RunError where every user of the machine can.
  std::filesystem::path compile_cache = {};
  /// How many bytes the folder may have. What was not used for longest is removed.
  std::uint64_t compile_cache_bytes = std::uint64_t{4} << 30;
  /// A file of tensors, or an index of several ones, instead of what the artifact names.
  std::filesystem::path weights = {};
  /// Whether files of weights, also those of `Function::with_weights`, are read into memory when they are opened. They
  /// are mapped otherwise: whoever shortens a mapped file ends the process with SIGBUS, and whoever writes to it
  /// changes what calls compute.
  bool stable = false;
  /// What refuses files, if there is something. Entries of `compile_cache` are not among them.
  CheckFile check_file = {};
  /// The function of this name, where the file is an archive. The archive is mapped, or read if `stable` says so; the
  /// function keeps it, and has its weights in it.
  std::string member = {};
  /// What keeps the memory of an Artifact. It is kept until nothing needs it: the function, its VJPs, and arrays of its
  /// weights in an archive.
  std::shared_ptr<const void> owner = {};
  /// The file that an Artifact was read from: its weights are in the same folder.
  std::filesystem::path file = {};
  /// XLA's options for this function and its VJPs, such as {"xla_cpu_enable_fast_math", true}, instead of those that
  /// $XLA_FLAGS has for all. Code from `executables` is used if it was compiled with the same ones. A name or a type
  /// that the plugin does not know is a RunError when the function is compiled.
  Options compile_options = {};
  /// Sets of sizes of all dimension variables, as in {{"batch", 1}}, {{"batch", 8}}: beside those that the artifact was
  /// saved with, `Artifact::sizes()`. `Function::compile()` compiles the function for each of them.
  std::vector<std::map<std::string, std::int64_t>> sizes = {};
  /// Whether a call with other sizes runs the code of the next larger set. Its arguments are padded with zeros, and its
  /// results are cut. That is done only along dimensions that the artifact declares, `Artifact::padded()`; otherwise,
  /// and where no set is large enough, the function is compiled for the sizes of the call. Such a call waits for its
  /// results. A function for several devices is never padded. `Runtime::set_log` says what is padded, and why not.
  bool pad = false;
  /// Whether calls run the code of these sets only. A call that would need other code throws RunError, which says why
  /// it was not padded.
  bool only_sizes = false;
  /// Whether `Function::compile()` also calls the function once for each set of sizes, with zeros and its weights: the
  /// first call of what was compiled takes tens of milliseconds longer than the others. Nothing is called that has
  /// effects, or loops that may not end for zeros; what fails for zeros is left out, and `Runtime::set_log` says why.
  bool warm_up = true;
};

/// A device of a plugin.
struct Device {
  int id;                             // in all processes
  std::string kind;                   // such as "cpu" or "NVIDIA H100 80GB HBM3"
  std::string description;            // in the plugin's words
  std::vector<std::string> memories;  // their kinds
  /// Bytes of its memory; nothing where the plugin does not say.
  std::optional<std::int64_t> memory_used, memory_limit;
};

/// What runs a custom call, as XLA_FFI_DEFINE_HANDLER of xla/ffi/api/ffi.h makes it.
using FfiHandler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

/// A plugin with its devices. A copy is the same runtime. Functions and arrays keep what they need of it.
class Runtime {
 public:
  using Options = jaxexp::Options;

  /// Loads a plugin, which stays in the process, and is told `options` when it starts. Throws RunError where it is
  /// none, or does not start.
  explicit Runtime(const std::filesystem::path& plugin, const Options& options = {});
  /// Takes what `GetPjrtApi()` of a plugin returns that is linked into the program.
  explicit Runtime(const PJRT_Api* plugin, const Options& options = {});

  std::string_view platform() const;          // as JAX calls it, such as "cpu" or "cuda"
  std::string_view platform_version() const;  // in the plugin's words
  std::string api_version() const;            // of the PJRT C API, such as "0.81"
  std::size_t nr_devices() const;
  /// A device by its number below `nr_devices()`. Throws RunError.
  Device device(std::size_t number) const;

  /// Calls `log` with one line about each thing that is worth knowing, and takes time: a function that is compiled, and
  /// why; code from a file; weights that are opened. Any thread may call it, while others that need the same function
  /// wait: it must not use that function, and must not throw. It replaces the one before; null: nobody hears them.
  void set_log(std::function<void(const std::string& line)> log) const;

  /// Loads a function from a file, verifies it, and compares what it needs with what the plugin has. Weights are in
  /// files beside this one, which are mapped, or read if the options say so, when the function is first called. Throws
  /// std::system_error where the file, or one of executables, cannot be opened, DeserializationError, or RunError, also
  /// where an archive has no such member, or an artifact is to have one.
  Function load(const std::filesystem::path& file, const LoadOptions& options = {}) const;
  /// The same from memory of the caller's, such as a member of an Archive. It has to stay while the function does, or
  /// LoadOptions say what keeps it. A member has its weights in the archive; other functions take theirs as arguments,
  /// unless LoadOptions name a file. Throws RunError too where options name a member.
  Function load(Artifact artifact, const LoadOptions& options = {}) const;

  /// Names the LAPACK of this process: a shared library, as a path or as a name that the system finds. Without this it
  /// is the one that $JAXEXP_LAPACK names, or else one of the system, when a function is loaded that calls LAPACK.
  /// Throws RunError where the library is none, where another one is in use already, and where the runtime was built
  /// without handlers for it.
  static void use_lapack(const std::filesystem::path& library);

  /// Gives the plugin a handler for the custom calls of a target, in functions that are compiled from now on. The
  /// plugin keeps it while the process lives, for all runtimes. Throws RunError where the plugin takes no handlers, has
  /// another one from here, or does not find this one afterwards: it does not where the handler is built for another
  /// version of XLA's FFI.
  void register_ffi(const std::string& target, FfiHandler* handler) const;

  /// Puts an array on a device. Throws RunError.
  Array put(const Array& array, std::size_t device = 0) const;

  /// Takes numbers of another library, as `Array::from_dlpack` does, and also where they are in the memory of a device
  /// of this plugin, on CUDA or ROCm. There they are used where they are, have to be row-major without gaps, and no
  /// call donates them. They have to be there, or to be made in `stream`, and must not change while something reads
  /// them. Throws RunError: then the tensor is still the caller's.
  Array from_dlpack(DLManagedTensorVersioned* tensor) const;
  Array from_dlpack(DLManagedTensor* tensor) const;
  /// The stream, a cudaStream_t or hipStream_t, that has to wait for the numbers that `from_dlpack` then takes from a
  /// device of DLPack: its type, such as kDLCUDA, and its number. 0: the plugin has none, so they have to be there.
  /// Throws RunError where it is no device of this plugin.
  std::intptr_t stream(std::int32_t device_type, std::int32_t device_number) const;

 private:
  void check_device(std::size_t number) const;

  std::shared_ptr<const runtime::Client> client_;
};

}  // namespace jaxexp

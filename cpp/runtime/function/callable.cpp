// The module's main function takes the platform's index where there are several platforms, and then the arguments that
// it uses.
#include "runtime/function/callable.h"

#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

#include "jaxexp/deserialization_error.h"
#include "runtime/plugin/compile_options.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/text.h"

namespace jaxexp::runtime {
namespace {

using Reason = RunError::Reason;

std::vector<std::size_t> chosen(const Client& client, const Artifact& artifact, std::vector<std::size_t> devices) {
  const std::size_t present = client.devices().size();
  const std::string name(artifact.function_name());
  const std::size_t needed = artifact.nr_devices();
  if (needed > present)
    throw RunError(Reason::unsupported, name + " was exported for " + std::to_string(needed) +
                                            " devices, and the plugin has " + std::to_string(present));
  if (devices.empty()) {
    devices.resize(needed);
    std::iota(devices.begin(), devices.end(), std::size_t{0});
  }
  if (devices.size() != needed)
    throw RunError(Reason::argument, name + " was exported for " + std::to_string(needed) + " devices, and " +
                                         std::to_string(devices.size()) + " were chosen");
  auto sorted = devices;
  std::ranges::sort(sorted);
  if (sorted.back() >= present || std::ranges::adjacent_find(sorted) != sorted.end())
    throw RunError(Reason::argument, "devices must be different numbers below " + std::to_string(present) + ", found " +
                                         description(Shape(devices.begin(), devices.end())));
  return devices;
}

using Clock = std::chrono::steady_clock;

std::string milliseconds_since(Clock::time_point begin) {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
  const std::string fraction = std::to_string(1000 + microseconds % 1000).substr(1, 1);
  return std::to_string(microseconds / 1000) + '.' + fraction + " ms";
}

/// Tells the times of a call, if somebody asks for them.
class Stopwatch {
 public:
  explicit Stopwatch(CallTimes* times) : times_(times) {
    if (times_) last_ = Clock::now();
  }
  void lap(std::chrono::nanoseconds CallTimes::* field) {
    if (!times_) return;
    const Clock::time_point now = Clock::now();
    times_->*field = now - std::exchange(last_, now);
  }

 private:
  CallTimes* times_;
  Clock::time_point last_;
};

/// Arguments that a call may donate, while it does.
class DonatingCall {
 public:
  explicit DonatingCall(Arguments arguments) : arguments_(arguments), may_(arguments.size()) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) may_[i] = arguments_[i]->uses.begin_call();
  }
  DonatingCall(const DonatingCall&) = delete;
  DonatingCall& operator=(const DonatingCall&) = delete;
  ~DonatingCall() {
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (may_[i]) arguments_[i]->uses.end_call();
  }
  /// Whether it does: not what was pinned before.
  bool may_donate(std::size_t i) { return i < arguments_.size() && may_[i] != 0; }

 private:
  Arguments arguments_;
  Few<std::uint8_t, 32> may_;
};

PJRT_Memory* memory(const Device& device, const Parameter& parameter) {
  if (!parameter.memory_kind) return nullptr;
  const auto found =
      std::ranges::find(device.memories, *parameter.memory_kind, &decltype(device.memories)::value_type::first);
  if (found != device.memories.end()) return found->second;
  if (*parameter.memory_kind == "device") return nullptr;  // a plugin with one memory may call it something else
  std::string kinds;
  for (const auto& [kind, memory] : device.memories) (kinds += kinds.empty() ? "" : ", ") += kind;
  throw RunError(Reason::unsupported, parameter.path + " is in memory of the kind " + *parameter.memory_kind +
                                          ", and the device has " + (kinds.empty() ? "one memory only" : kinds));
}

}  // namespace

Callable::Callable(std::shared_ptr<const Client> client, Artifact artifact, std::shared_ptr<const void> owner,
                   std::vector<std::size_t> devices, CodeSources sources, Client::Options compile_options,
                   SizeOptions size_options)
    : owner_(std::move(owner)),
      client_(std::move(client)),
      artifact_(std::move(artifact)),
      devices_(chosen(*client_, artifact_, std::move(devices))),
      arguments_(parameters(artifact_.arguments(), artifact_.nr_devices(), expressions_)),
      variables_(variables_in(expressions_)),
      results_(parameters(artifact_.results(), artifact_.nr_devices(), expressions_)),
      kept_(artifact_.kept_arguments()),
      program_(artifact_, client_),
      sources_(std::move(sources)),
      compile_options_(std::move(compile_options)),
      size_options_(std::move(size_options)),
      places_(results_.size()),
      choice_(name(), variables_, size_options_) {
  check_signature();
}

/// Nothing else ties the module to the signature: the plugin takes any bytes, as long as there are enough of them.
void Callable::check_signature() const {
  const auto found = program_.types_of_main();
  if (!found) return;
  const auto refuse = [](const std::string& expected, const std::string& type) {
    constexpr std::size_t longest = 240;
    throw DeserializationError("mlir_module_serialized", "a main function that " + wire::shortened(expected, longest),
                               wire::shortened(type, longest));
  };
  const std::size_t others = program_.platform_index ? 1 : 0;
  const auto check_count = [&](const std::string& what, std::size_t wanted, std::size_t count) {
    if (count != wanted)
      refuse(what + ' ' + std::to_string(wanted) + " values, as the signature says",
             "one that " + what + ' ' + std::to_string(count));
  };
  check_count("takes", kept_.size() + others, found->arguments.size());
  check_count("returns", results_.size(), found->results.size());
  const auto fits = [](const Parameter& wanted, const adapt::ValueType& type) {
    return wanted.type->name == type.dtype &&
           std::ranges::equal(wanted.dimensions, type.sizes, [](const Dimension& dimension, std::int64_t size) {
             // A module may know less about a shape than the signature.
             return size == refine::dynamic_size || (dimension.is_constant() && dimension.constant() == size);
           });
  };
  if (others > 0) {
    const adapt::ValueType& index = found->arguments.front();
    if ((index.dtype != "int32" && index.dtype != "int64") || !index.sizes.empty())
      refuse("takes int32[] as the platform's index", index.str());
  }
  for (std::size_t i = 0; i < kept_.size(); ++i)
    if (const Parameter& wanted = arguments_[kept_[i]]; !fits(wanted, found->arguments[others + i]))
      refuse("takes " + wanted.str() + " as " + wanted.path, found->arguments[others + i].str());
  for (std::size_t i = 0; i < results_.size(); ++i)
    if (!fits(results_[i], found->results[i]))
      refuse("returns " + results_[i].str() + " as " + results_[i].path, found->results[i].str());
}

std::vector<Variables> Callable::compile() const {
  const std::vector<Variables> all = variables_.empty() ? std::vector{Variables()} : choice_.listed();
  if (all.empty())
    throw RunError(Reason::argument, name() + " has symbolic dimensions (" + listed(variables_) +
                                         "): it is compiled when it is first called with their sizes, or when "
                                         "compile() gets them");
  for (const Variables& sizes : all) static_cast<void>(compiled(sizes));
  return all;
}

std::vector<Variables> Callable::compile(const std::map<std::string, std::int64_t>& sizes) const {
  const Variables given(sizes.begin(), sizes.end());
  const auto found = variables_of(sizes, variables_);
  if (!found)
    throw RunError(Reason::argument, name() + " takes " + wanted_sizes(variables_) + ", found " +
                                         (given.empty() ? "no sizes" : str(given)));
  if (variables_.empty()) return compile();
  static_cast<void>(compiled(*found));
  return {*found};
}

const Callable::Compiled& Callable::compiled() const {
  if (const Compiled* const known = known_) return *known;
  known_ = compiled({}).get();  // which `by_sizes_` keeps: there are no other sizes
  return *known_;
}

std::shared_ptr<const Callable::Compiled> Callable::compiled(const Variables& sizes) const {
  static_cast<void>(PluginCall());
  return by_sizes_.get(sizes, [&] { return make_compiled(sizes); });
}

Callable::Compiled Callable::make_compiled(const Variables& sizes) const {
  const Clock::time_point begin = Clock::now();
  const std::string name = this->name() + (sizes.empty() ? "" : " for " + str(sizes));
  const StaticModule module = static_module(sizes);
  KeptCode found;
  wire::Entries here = sources_.file || sources_.store ? conditions(sizes, module) : wire::Entries{};
  const char* place = "the file of executables";
  if (sources_.file) found = find_code(client_, *sources_.file, here);
  std::optional<wire::Store::Turn> turn;
  if (!found.executable && sources_.store) {
    KeptCode stored = find_stored_code(client_, *sources_.store, here, turn);
    if (stored.executable || !sources_.file) {
      found = std::move(stored);
      place = "the compile cache";
    }
  }
  std::optional<HloShardings> kept_shardings;
  std::string why_not = found.executable ? std::string() : wire::escaped(found.why_not);
  if (found.executable) {
    kept_shardings = std::move(found.shardings);
    client_->say(name + ": has code from " + place + ", in " + milliseconds_since(begin));
  } else {
    found.executable = make_executable(module);
    client_->say(name + ": compiled in " + milliseconds_since(begin) +
                 (why_not.empty() ? "" : std::string(", and not taken from ") + place + ": " + why_not));
    const std::string why_not_stored =
        sources_.store ? store_code(*found.executable, devices_.size() > 1, here, *sources_.store) : std::string();
    if (!why_not_stored.empty())
      client_->say(name + ": not added to the compile cache: " + wire::escaped(why_not_stored));
  }
  Compiled compiled{
      std::move(*found.executable), {}, {}, make_platform_index(), std::move(kept_shardings), std::move(why_not)};
  for (const Parameter& argument : arguments_) compiled.arguments.push_back(argument.tiling);
  for (const Parameter& result : results_) compiled.results.push_back(result.tiling);
  if (devices_.size() > 1) ask_for_shardings(compiled);
  return compiled;
}

/// How a weight is divided, whose own shape has no symbolic dimension.
const Tiling& Callable::tiling(std::size_t argument) const {
  return variables_.empty() ? compiled().arguments[argument] : arguments_[argument].tiling;
}

/// Of the arguments of the module's main function.
std::vector<Shape> Callable::module_shapes(const Variables& sizes) const {
  std::vector<Shape> shapes;
  if (program_.platform_index) shapes.emplace_back();
  for (const std::uint32_t i : kept_) shapes.push_back(arguments_[i].shape(sizes));
  return shapes;
}

/// The sizes that a call with these runs with, where they are others.
std::optional<Variables> Callable::padded_sizes(const Variables& given) const {
  if (given.empty() || choice_.is_free()) return std::nullopt;
  const auto why_not = [&](const Variables& from, const Variables& to) {
    const std::optional<std::string> found = why_not_padded(from, to);
    client_->say(name() + ": " + str(from) +
                 (found ? " is not padded to " + str(to) + ": " + *found : " is padded to " + str(to)));
    return found;
  };
  const auto chosen = choice_.chosen(given, why_not);
  return chosen->sizes == given ? std::nullopt : std::optional(chosen->sizes);
}

/// Nothing where the artifact declares all dimensions that grow. Throws RunError where `given` breaks a constraint: the
/// code for these sizes would say so, and it does not run.
std::optional<std::string> Callable::why_not_padded(const Variables& given, const Variables& padded) const {
  if (devices_.size() > 1) return "it is for several devices";
  const std::vector<std::string_view> declared = artifact_.padded();
  std::set<std::string_view> missing;
  std::string all;
  for (const auto& [name, size] : given) {
    const bool is_declared = std::ranges::find(declared, name) != declared.end();
    if (!is_declared && size == padded.at(name)) continue;
    if (!is_declared) missing.insert(name);
    all += (all.empty() ? "\"" : ", \"") + std::string(name) + '"';
  }
  if (!missing.empty())
    return "the artifact does not declare that " + listed(missing) + " may be padded: save the function with pad=[" +
           all + "], which checks that it may";
  static_cast<void>(static_module(given));
  try {
    static_cast<void>(static_module(padded));
  } catch (const RunError& error) {  // only these sizes are not those of the caller
    return std::string("the larger sizes do not fit: ") + error.what();
  }
  const auto becomes_smaller = [&](const Parameter& one) {
    return !std::ranges::equal(one.shape(given), one.shape(padded), std::less_equal<>());
  };
  for (const auto* values : {&arguments_, &results_})
    if (const auto found = std::ranges::find_if(*values, becomes_smaller); found != values->end())
      return found->path + " has the shape " + description(found->shape(given)) + ", and would have " +
             description(found->shape(padded));
  return std::nullopt;
}

Callable::StaticModule Callable::static_module(const Variables& sizes) const {
  const std::span<const std::uint8_t> module = program_.module;
  if (!artifact_.has_dynamic_shapes()) return {module};
  try {
    auto found = program_.with_shapes(module_shapes(sizes));
    if (!found) return {module};
    StaticModule made{{}, std::move(*found)};
    made.bytes = made.own;
    return made;
  } catch (const RunError& error) {
    if (error.reason() != Reason::unsupported) throw;
    throw RunError(Reason::unsupported, name() + " has symbolic dimensions, and " + error.what() +
                                            ": fix them with 'jaxexp specialize OLD --size NAME=SIZE "
                                            "-o NEW', and run that file");
  }
}

void Callable::keep_code(const std::filesystem::path& path) const {
  if (variables_.empty()) static_cast<void>(compiled());
  static_cast<void>(PluginCall());
  const auto all = by_sizes_.all();
  if (all.empty())
    throw RunError(Reason::argument, name() + " has symbolic dimensions (" + listed(variables_) +
                                         "), and is compiled for no sizes yet: call it first");
  for (const auto& [sizes, compiled] : all) {
    const StaticModule module = static_module(sizes);
    const wire::Entries here = conditions(sizes, module);
    if (has_code(path, here)) continue;
    const bool has_shardings = devices_.size() > 1;
    // Code from a file may be incomplete when it is serialized again.
    if (compiled->kept_shardings)
      runtime::keep_code(make_executable(module), has_shardings, here, path);
    else
      runtime::keep_code(compiled->executable, has_shardings, here, path);
  }
}

std::string Callable::why_compiled() const {
  if (plugins_are_gone()) return {};
  const auto all = by_sizes_.all();
  return all.empty() ? std::string() : all.front().second->why_compiled;
}

std::string Callable::options(const Client::Options& of_xla) const {
  std::vector<int> ids;
  for (std::size_t d = 0; d < devices_.size(); ++d) ids.push_back(device(d).id);
  return runtime::compile_options(ids, program_.uses_shardy, of_xla);
}

/// Everything that has to be the same where code of the function is used: the module, how it is compiled, the machine
/// and the plugin.
wire::Entries Callable::conditions(const Variables& sizes, const StaticModule& module) const {
  wire::Entries entries{{"function", name()}, {"module", sha256_of_module()}};
  if (!sizes.empty()) entries.emplace_back("sizes", str(sizes));
  if (!module.own.empty()) entries.emplace_back("static module", wire::hexadecimal(wire::digest(module.own)));
  for (auto& entry : client_->identity(device(0))) entries.push_back(std::move(entry));
  std::string ids;
  for (std::size_t d = 0; d < devices_.size(); ++d) (ids += d > 0 ? "," : "") += std::to_string(device(d).id);
  entries.emplace_back("devices", std::move(ids));  // they are among the options, too, where nobody could read them
  entries.emplace_back("compile options", wire::hexadecimal(options(as_in_jax(*client_, compile_options_))));
  return entries;
}

const std::string& Callable::sha256_of_module() const {
  std::call_once(is_hashed_, [this] { sha256_of_module_ = wire::hexadecimal(wire::sha256(program_.module)); });
  return sha256_of_module_;
}

Executable Callable::make_executable(const StaticModule& module) const {
  const auto changed = without_sources(module.bytes);
  const std::span<const std::uint8_t> bytes = changed ? *changed : module.bytes;
  Client::Options all = as_in_jax(*client_, compile_options_);
  while (true) {
    try {
      return Executable(client_, bytes, options(all));
    } catch (const PluginError& error) {
      const auto is_unknown = [&](const auto& option) {
        return !compile_options_.contains(option.first) && error.words.find(option.first) != std::string::npos;
      };
      if (std::erase_if(all, is_unknown) == 0) {
        explain(error.words);
        throw;
      }
    }
  }
}

/// Throws what is known about why the plugin does not compile the module, which it says in `error`.
void Callable::explain(std::string_view error) const {
  const std::string words = " (" + wire::shortened(error.substr(0, error.find('\n')), 300) + ")";
  const auto refuse = [&](const std::string& reason, const std::string& advice = {}) {
    throw RunError(Reason::unsupported, name() + reason + words + advice);
  };
  for (const auto& [option, value] : compile_options_)
    if (error.find(option) != error.npos)
      throw RunError(Reason::argument, name() + ": the plugin does not take the compile option " + option + words +
                                           ": leave it out, or give it as the plugin's release of XLA has it");
  const std::string newer = program_.newer_stablehlo(*client_);
  // An error that names operations as they are stored is the reader's, who does not know one of them.
  if (!newer.empty() && error.find("vhlo.") != error.npos) refuse(' ' + newer);
  if (const std::string calls = program_.refused_custom_calls(error); !calls.empty())
    refuse(" has custom calls that the plugin does not compile: " + calls,
           (program_.lapack_advice.empty() ? "; a program gives the plugin handlers of its own by register_ffi"
                                           : program_.lapack_advice) +
               (program_.platform_index ? "; the code for all of its platforms is compiled, so export it for " +
                                              client_->platform() + " only, if these are for others"
                                        : "") +
               (newer.empty() ? "" : "; another reason may be that it " + newer));
  if (!newer.empty()) refuse(' ' + newer);
}

Callable::Buffers Callable::make_platform_index() const {
  if (!program_.platform_index) return {};
  const Buffer::Source source{element_type("int32"), {}, &*program_.platform_index, {}, nullptr};
  Buffers indices;
  for (std::size_t d = 0; d < devices_.size(); ++d)
    indices.push_back(Buffer::from_host(client_, source, device(d), nullptr));
  return indices;
}

/// Where the artifact does not say how a value is divided, the compiler has decided it.
void Callable::ask_for_shardings(Compiled& compiled) const {
  const auto is_open = [](const Tiling& tiling) { return !tiling.is_specified(); };
  if (std::ranges::none_of(compiled.arguments, is_open) && std::ranges::none_of(compiled.results, is_open)) return;
  const HloShardings found = compiled.kept_shardings ? *compiled.kept_shardings : compiled.executable.shardings();
  const auto fill = [&](Tiling& tiling, const std::vector<std::string>& protos, std::size_t index,
                        const std::string& path) {
    if (tiling.is_specified() || index >= protos.size()) return;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(protos[index].data());
    tiling = Tiling({bytes, protos[index].size()}, artifact_.nr_devices(), path);
  };
  for (std::size_t i = 0; i < kept_.size(); ++i)
    fill(compiled.arguments[kept_[i]], found.parameters, i + program_.platform_index.has_value(),
         arguments_[kept_[i]].path);
  for (std::size_t i = 0; i < results_.size(); ++i) fill(compiled.results[i], found.results, i, results_[i].path);
}

Variables Callable::check(Arguments arguments) const {
  std::vector<Equation> equations;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Parameter& expected = arguments_[i];
    const Numbers& found = *arguments[i];
    const auto refuse = [&](const std::string& where, const std::string& what, const std::string& theirs,
                            const std::string& ours) {
      throw RunError(Reason::argument, where + " must have " + what + ' ' + theirs + ", found " + what + ' ' + ours +
                                           " (exported with " + expected.str() + ", called with " + description(found) +
                                           ')');
    };
    if (found.shape.size() != expected.dimensions.size())
      refuse(expected.path, "rank", std::to_string(expected.dimensions.size()), std::to_string(found.shape.size()));
    if (found.type != expected.type)
      refuse(expected.path, "dtype", std::string(expected.type->name), std::string(found.type->name));
    for (std::size_t d = 0; d < found.shape.size(); ++d) {
      const Dimension& dimension = expected.dimensions[d];
      const auto where = [&] { return expected.path + ".shape[" + std::to_string(d) + "]"; };
      if (!dimension.is_constant())
        equations.push_back({&dimension, found.shape[d], where()});
      else if (dimension.constant() != found.shape[d])
        refuse(where(), "size", std::to_string(dimension.constant()), std::to_string(found.shape[d]));
    }
  }
  return equations.empty() ? Variables{} : solve(equations);
}

std::optional<Block> Callable::block(const Numbers& numbers, std::size_t device, const Parameter& parameter,
                                     const Tiling& tiling) const {
  if (tiling.is_whole()) return std::nullopt;
  auto [start, shape] = tiling.part(numbers.shape, device, parameter.path);
  if (shape == numbers.shape) return std::nullopt;
  return Block{std::move(start), std::move(shape)};
}

bool Callable::is_in_place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const {
  if (numbers.parts.size() != devices_.size()) return false;
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const Part& part = numbers.parts[d];
    const bool is_same = tiling.is_whole() ? !part.block : part.block == block(numbers, d, parameter, tiling);
    if (!is_same || part.buffer->client() != client_ || part.buffer->device() != device(d).device) return false;
  }
  return true;
}

bool Callable::has_in_place(std::size_t argument, const Numbers& numbers) const {
  return is_in_place(numbers, arguments_[argument], tiling(argument));
}

std::shared_ptr<const Numbers> Callable::put(std::size_t argument, const Numbers& numbers) const {
  const Parameter& parameter = arguments_[argument];
  const Tiling& tiling = this->tiling(argument);
  Numbers placed{numbers.type, numbers.shape, nullptr, nullptr, {}, /*is_lent=*/true};
  Buffers buffers = place(numbers, parameter, tiling);
  for (std::size_t d = 0; d < devices_.size(); ++d)
    placed.parts.push_back({block(numbers, d, parameter, tiling), std::move(buffers[d])});
  return std::make_shared<const Numbers>(std::move(placed));
}

Callable::Buffers Callable::place(const Numbers& numbers, const Parameter& parameter, const Tiling& tiling) const {
  if (!numbers.parts.empty())  // elsewhere, or divided in another way
    return place(on_host(numbers), parameter, tiling);
  Buffers buffers;
  const Shape strides = row_major_strides(numbers.shape, numbers.type->bytes);
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const auto part = block(numbers, d, parameter, tiling);
    const auto* data = static_cast<const std::byte*>(numbers.data);
    for (std::size_t i = 0; part && i < strides.size(); ++i) data += part->start[i] * strides[i];
    const Buffer::Source source{numbers.type, part ? part->shape : numbers.shape, data,
                                part ? strides : std::span<const std::int64_t>(), numbers.owner};
    buffers.push_back(Buffer::from_host(client_, source, device(d), memory(device(d), parameter)));
  }
  return buffers;
}

Arrays Callable::call(Arguments arguments, CallTimes* times) const {
  Stopwatch stopwatch(times);
  const Variables given = check(arguments);
  const auto padded = padded_sizes(given);
  const Variables& variables = padded ? *padded : given;
  Arrays larger;
  std::vector<const Numbers*> with_larger;
  if (padded) {
    with_larger.assign(arguments.begin(), arguments.end());
    for (const std::uint32_t i : kept_) {
      const Shape shape = arguments_[i].shape(variables);
      if (shape == arguments[i]->shape) continue;
      larger.push_back(std::make_shared<const Numbers>(runtime::padded(*arguments[i], shape)));
      with_larger[i] = larger.back().get();
    }
    arguments = with_larger;
  }
  std::shared_ptr<const Compiled> for_sizes;
  if (!variables.empty()) for_sizes = this->compiled(variables);
  const Compiled& compiled = for_sizes ? *for_sizes : this->compiled();
  const std::size_t nr_devices = devices_.size(), nr_inputs = kept_.size() + program_.platform_index.has_value();
  Few<PJRT_Buffer*, 32> inputs(nr_devices * nr_inputs);
  Few<std::int64_t, 32> not_donated(nr_inputs);
  std::size_t nr_not_donated = 0;
  // First what is elsewhere: to read an array is to wait for calls that may donate it, of which this will be one.
  std::vector<std::pair<std::uint32_t, Buffers>> placed;  // until the plugin has them
  for (const std::uint32_t i : kept_)
    if (const Tiling& tiling = compiled.arguments[i]; !is_in_place(*arguments[i], arguments_[i], tiling))
      placed.emplace_back(i, place(*arguments[i], arguments_[i], tiling));
  auto next_placed = placed.begin();
  DonatingCall donating(program_.may_donate ? arguments : Arguments());
  std::size_t input = 0;
  if (program_.platform_index) {
    for (std::size_t d = 0; d < nr_devices; ++d) inputs[d * nr_inputs] = compiled.platform_index[d]->get();
    ++input;
  }
  for (const std::uint32_t i : kept_) {
    const Numbers& numbers = *arguments[i];
    if (numbers.is_lent || (program_.may_donate && !donating.may_donate(i)))
      not_donated[nr_not_donated++] = static_cast<std::int64_t>(input);
    const bool is_placed = next_placed != placed.end() && next_placed->first == i;
    for (std::size_t d = 0; d < nr_devices; ++d) {
      const Buffer& buffer = is_placed ? *next_placed->second[d] : *numbers.parts[d].buffer;
      if (!is_placed && numbers.uses.may_be_gone() && buffer.is_deleted())
        throw RunError(Reason::argument,
                       arguments_[i].path + " is gone: an earlier call donated its memory to its own results");
      inputs[d * nr_inputs + input] = buffer.get();
    }
    next_placed += is_placed;
    ++input;
  }
  const std::size_t nr_outputs = nr_devices * compiled.executable.nr_results();
  Few<std::shared_ptr<const Buffer>, 8> outputs(nr_outputs);
  stopwatch.lap(&CallTimes::prepare);
  const auto in_order = program_.is_ordered ? client_->in_order() : std::unique_lock<std::mutex>();
  compiled.executable.run(inputs.all(), nr_devices, not_donated.all().first(nr_not_donated), outputs.all(),
                          /*waits=*/program_.is_ordered);
  Arrays made = results(compiled, outputs.all(), variables);
  stopwatch.lap(&CallTimes::start);
  if (padded) made = cut(made, given);
  if (!times) return made;
  for (const auto& result : made)
    for (const Part& part : result->parts) part.buffer->wait();
  stopwatch.lap(&CallTimes::wait);
  return made;
}

Arrays Callable::results(const Compiled& compiled, std::span<std::shared_ptr<const Buffer>> outputs,
                         const Variables& variables) const {
  const std::size_t count = compiled.executable.nr_results();
  if (count != results_.size())
    throw RunError(Reason::plugin, "the plugin computed " + std::to_string(count) +
                                       " results, where the artifact has " + std::to_string(results_.size()));
  Arrays results;
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto numbers = std::make_shared<Numbers>();
    numbers->type = results_[i].type;
    numbers->shape = results_[i].shape(variables);
    numbers->parts.reserve(devices_.size());
    for (std::size_t d = 0; d < devices_.size(); ++d)
      numbers->parts.push_back(
          {block(*numbers, d, results_[i], compiled.results[i]), std::move(outputs[d * count + i])});
    // Every call makes arrays of one kind, unless their shapes depend on the arguments'.
    std::atomic<Place>& place = places_[i];
    if (place == Place::unknown || !variables.empty()) {
      check_result(i, *numbers);
      place = buffer_on_host(*numbers) ? Place::on_host : Place::elsewhere;
    }
    numbers->is_on_host = place == Place::on_host;
    results.push_back(std::move(numbers));
  }
  return results;
}

/// What is left of results without padding, on the device again. Waits for them.
Arrays Callable::cut(const Arrays& results, const Variables& given) const {
  Arrays left;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Numbers& whole = *results[i];
    const Shape shape = results_[i].shape(given);
    if (shape == whole.shape) {
      left.push_back(results[i]);
      continue;
    }
    if (!std::ranges::equal(shape, whole.shape, std::less_equal<>()))
      throw RunError(Reason::plugin, results_[i].path + " would be " + description(shape) +
                                         ", and with padding it is " + description(whole.shape));
    Numbers numbers{whole.type, shape, nullptr, nullptr, {}};
    const Shape strides = row_major_strides(whole.shape, whole.type->bytes);
    const bool is_dense = strides == row_major_strides(shape, whole.type->bytes);
    const Buffer::Source source{whole.type, shape, host_data(whole),
                                is_dense ? std::span<const std::int64_t>() : strides, results[i]};
    numbers.parts.push_back(
        {std::nullopt, Buffer::from_host(client_, source, device(0), memory(device(0), results_[i]))});
    left.push_back(std::make_shared<const Numbers>(std::move(numbers)));
  }
  return left;
}

void Callable::check_result(std::size_t index, const Numbers& numbers) const {
  const Parameter& expected = results_[index];
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const auto& [block, buffer] = numbers.parts[d];
    const Shape& shape = block ? block->shape : numbers.shape;
    if (buffer->shape() != shape || buffer->type() != expected.type->type)
      throw RunError(Reason::plugin, expected.path + " came as " + description(buffer->shape()) + " on device " +
                                         std::to_string(d) + ", where the artifact says " + expected.str() +
                                         ", of which a device has " + description(shape));
  }
}

}  // namespace jaxexp::runtime

// Options have one form: two dashes, a name, and the value as the next argument.
#include "runtime/command/arguments.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "runtime/api/array.h"
#include "runtime/command/small_float.h"
#include "runtime/npy/npy.h"
#include "wire/base/error.h"
#include "wire/compiled/written_file.h"

namespace jaxexp::command {
namespace {

std::size_t parsed(const std::string& option, const std::string& text) {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) throw UsageError(option + " takes a number, and not '" + text + "'");
  return number;
}

std::pair<std::string, std::string> split(const std::string& text, const std::string& expected) {
  const std::size_t at = text.find('=');
  if (at == text.npos || at == 0) throw UsageError(expected + ", and not '" + text + "'");
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

const char* const usage =
    R"(usage: jaxexp-run [--plugin PLUGIN] ARTIFACT [INPUT...] [-o FILE]
       jaxexp-run --inspect ARTIFACT
       jaxexp-run [--plugin PLUGIN] --cases ARTIFACT -o FILE

Runs a function that jax.export or jaxexp has serialized, on a PJRT plugin.

  ARTIFACT            a file, or a member of an archive, as in fleet.zip::resnet/b8
  INPUT               an argument: a .npy file, or a number for a scalar. PATH=INPUT is the argument of this path, as in
                      "args[0]['w']=w.npy"; each other one is the first that is left. A .npz file (of np.savez) has
                      several, named by their paths, or arr_0, arr_1, ...
  -o, --out FILE      where the results go: .npy for one, .npz for any number (by their paths). Without it, their ranges
                      are printed, and the numbers of small ones
  --plugin PLUGIN     the shared library of a PJRT plugin (default: $JAXEXP_PLUGIN)
  --option NAME=VALUE what the plugin is told when it starts
  --lapack LIBRARY    the shared library of a LAPACK (default: $JAXEXP_LAPACK, or else one of the system)
  --device N          a device to run on; once for each device of the function (default: the first ones)
  --member NAME       the function of this name, where ARTIFACT is an archive
  --vjp N             not the function but its VJP (1), the VJP's VJP (2), ...
  --weights FILE      the weights: a safetensors file, or an index of several (default: what ARTIFACT names)
  --stable            read files of weights, and archives, into memory instead of mapping them
  --sizes NAME=SIZE[,NAME=SIZE...]  a set of sizes of symbolic dimensions, beside those that ARTIFACT was saved with; once
                      for each set
  --pad               run the code of the next larger set, where ARTIFACT declares the dimensions that are padded
  --only-sizes        run the code of these sets, and no other code
  --save-executable FILE  add the compiled code to FILE, which is made if it is not there; the function is called only
                      if there are inputs, -o or --repeat, too
  --executables FILE  use the code in FILE, where it fits; FILE is trusted like a program
  --compile-cache FOLDER  share compiled code with other processes in FOLDER, which is trusted like a program (default:
                      $JAXEXP_COMPILE_CACHE)
  --repeat N          call the function N times more, and say how long that takes
  --cases             make the calls again that were recorded in ARTIFACT, and write what they return to -o FILE, a
                      .npz, for 'jaxexp check ARTIFACT --results FILE'; the exit status is 1 if a call fails, or there
                      are none
  --max-drawn-bytes N how many bytes the random arguments of a case may take (default: 4 GiB)
  --inspect           say what the function takes and returns; needs no plugin
  --version           say which version of jaxexp this is
  --help              say this
)";

Arguments::Arguments(int count, char** texts) {
  using Text = const std::string&;
  const auto text = [](std::string& field) { return [&field](Text value) { field = value; }; };
  const std::map<std::string_view, std::function<void(Text)>> setters = {
      {"--plugin", text(plugin)},
      {"--out", text(out)},
      {"-o", text(out)},
      {"--member", text(member)},
      {"--executables", text(executables)},
      {"--save-executable", text(save_executable)},
      {"--compile-cache", text(compile_cache)},
      {"--weights", text(weights)},
      {"--lapack", text(lapack)},
      {"--repeat", [this](Text value) { repeat = parsed("--repeat", value); }},
      {"--max-drawn-bytes", [this](Text value) { max_drawn_bytes = parsed("--max-drawn-bytes", value); }},
      {"--vjp", [this](Text value) { vjp_order = parsed("--vjp", value); }},
      {"--device", [this](Text value) { devices.push_back(parsed("--device", value)); }},
      {"--sizes", [this](Text value) { sizes.push_back(runtime::sizes_in(value)); }},
      {"--option",
       [this](Text value) {
         const auto [name, given] = split(value, "--option takes NAME=VALUE");
         options[name] = runtime::option_value(given);
       }},
  };
  const std::map<std::string_view, bool*> flags = {
      {"--help", &help},   {"-h", &help},         {"--inspect", &inspect}, {"--version", &version},
      {"--cases", &cases}, {"--stable", &stable}, {"--pad", &pad},         {"--only-sizes", &only_sizes}};
  std::vector<std::string> files;
  for (int i = 1; i < count; ++i) {
    const std::string option = texts[i];
    if (const auto flag = flags.find(option); flag != flags.end())
      *flag->second = true;
    else if (option == "--check" || option == "--tolerance")
      throw UsageError(option +
                       " is gone: '--cases -o results.npz' writes what the recorded calls return, and 'jaxexp check "
                       "ARTIFACT --results results.npz' compares it");
    else if (!option.starts_with("--") && option != "-o")  // negative numbers are inputs
      files.push_back(option);
    else if (const auto setter = setters.find(option); setter == setters.end())
      throw UsageError("there is no option " + option);
    else if (++i == count)
      throw UsageError(option + " takes a value");
    else
      setter->second(texts[i]);
  }
  if (help || version) return;
  if (files.empty()) throw UsageError("an artifact is missing");
  if (const char* const named = std::getenv("JAXEXP_PLUGIN"); named && plugin.empty()) plugin = named;
  if (const char* const named = std::getenv("JAXEXP_COMPILE_CACHE"); named && compile_cache.empty())
    compile_cache = named;
  if (compile_cache.find("://") != std::string::npos)
    throw UsageError("a compile cache is a folder, and '" + compile_cache +
                     "' is a URL: mount it, or copy its files to a folder");
  if (plugin.empty() && !inspect) throw UsageError("--plugin is missing, and so is $JAXEXP_PLUGIN");
  if (!out.empty() && !out.ends_with(".npy") && !out.ends_with(".npz"))
    throw UsageError("--out takes a file .npy or .npz, and not '" + out + "'");
  artifact = files.front();
  inputs.assign(files.begin() + 1, files.end());
  if (cases) check_cases();
  split_member();
}

void Arguments::check_cases() const {
  if (!inputs.empty()) throw UsageError("--cases takes one artifact and no inputs: a case has its own");
  if (!out.ends_with(".npz")) throw UsageError("--cases needs a file for what the calls return, as in -o results.npz");
  if (inspect || !save_executable.empty() || repeat > 0 || vjp_order > 0)
    throw UsageError(
        "--cases makes the calls of the cases, also of VJPs: leave out --inspect, --save-executable, --repeat and "
        "--vjp");
}

bool Arguments::calls() const { return save_executable.empty() || !inputs.empty() || !out.empty() || repeat > 0; }

void Arguments::split_member() {
  constexpr std::string_view colons = "::";
  const std::size_t at = artifact.rfind(colons);
  std::error_code ignored;
  // A file that has the whole text as its name is a file.
  if (at == artifact.npos || at == 0 || std::filesystem::exists(artifact, ignored)) return;
  if (!member.empty()) throw UsageError("'" + artifact + "' names a member, and so does --member");
  member = artifact.substr(at + colons.size());
  artifact.resize(at);
}

// As `jaxexp run` reads them, except that complex numbers and keys take files.

namespace {

struct Parsed {
  std::string expected;
  std::optional<Array> array;
};

template <class T>
Parsed integer(const std::string& text) {
  using Limits = std::numeric_limits<T>;
  Parsed parsed{"an integer from " + std::to_string(Limits::min()) + " to " + std::to_string(Limits::max()) + ", or ",
                {}};
  T number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end) parsed.array = Array(number);
  return parsed;
}

/// The nearest number of a float of 16 bits; halfway, the even one.
Array in_16_bits(const std::string& dtype, double number) {
  const unsigned code = small_float(dtype)->encoded(number);  // that of NaN is infinity's
  return {dtype, {}, std::make_shared<const std::uint16_t>(static_cast<std::uint16_t>(code + std::isnan(number)))};
}

Parsed real(const std::string& text, const std::string& dtype) {
  char* rest = nullptr;
  const double number = std::strtod(text.c_str(), &rest);
  Parsed parsed{"a number, or ", {}};
  if (text.empty() || rest != text.data() + text.size()) return parsed;
  if (dtype == "float16" || dtype == "bfloat16") parsed.array = in_16_bits(dtype, number);
  if (dtype == "float32") parsed.array = Array(static_cast<float>(number));
  if (dtype == "float64") parsed.array = Array(number);
  return parsed;
}

Parsed boolean(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_true = text == "true" || text == "1", is_false = text == "false" || text == "0";
  return {"true or false, or ", is_true || is_false ? std::optional(Array(is_true)) : std::nullopt};
}

Parsed number_of(const std::string& text, const std::string& dtype) {
  if (dtype == "bool") return boolean(text);
  if (dtype == "float16" || dtype == "bfloat16" || dtype == "float32" || dtype == "float64") return real(text, dtype);
  Parsed found;
  const auto take = [&]<class... Types>(std::tuple<Types...>) {
    static_cast<void>(((dtype == dtype_of<Types>() && (found = integer<Types>(text), true)) || ...));
  };
  take(std::tuple<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                  std::uint64_t>());
  return found;
}

}  // namespace

void refuse_input(const std::string& text, const Value& value, const std::string& expected) {
  throw InputError(value.path + ", " + value.str() + ", takes " + expected + "a .npy file, and not '" + text + "'");
}

Array scalar(const std::string& text, const Value& value) {
  const auto [expected, array] = number_of(text, std::string(value.dtype));
  if (!array) refuse_input(text, value, expected);
  return *array;
}

// Files stay in memory while arrays are views of them.

namespace {

using File = std::shared_ptr<const wire::FileBytes>;

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// Runs a reader of a file, whose errors get the file's name.
template <class Read>
auto reading(const std::string& name, const Read& read) {
  try {
    return read();
  } catch (const npy::NpyError& error) {
    refuse(name + " cannot be read: " + error.what());
  }
}

/// Whether bytes are numbers of a dtype of less than a byte each; any bytes may be numbers of others.
bool are_numbers(std::span<const std::uint8_t> bytes, std::string_view dtype) {
  const bool is_float = dtype == "float4_e2m1fn", is_signed = dtype.starts_with("int");
  const int bits = is_float || dtype.ends_with("int4") ? 4 : dtype.ends_with("int2") ? 2 : 8;
  return std::ranges::all_of(bytes, [&](std::uint8_t byte) {
    const int number = static_cast<std::int8_t>(byte);
    return bits == 8 || byte < 1 << bits || (is_signed && number < 0 && number >= -(1 << (bits - 1)));
  });
}

Array array(const File& file, const npy::Item& item, const Value& value) {
  const auto differs = [&](const std::string& found) {
    refuse(value.path + " is " + value.str() + ", and not " + found);
  };
  if (item.dtype.empty() && (npy::has_name(value.dtype) || !are_numbers(item.data, value.dtype)))
    differs("the bytes of another dtype");
  const std::string& dtype = item.dtype.empty() ? value.dtype : item.dtype;  // as many bytes have to fit
  std::shared_ptr<const void> data(file, item.data.data());
  if (item.is_fortran_order) {
    auto numbers = std::make_shared<const std::vector<std::uint8_t>>(npy::row_major(item));
    data = {numbers, numbers->data()};
  }
  Array made(dtype, item.shape, std::move(data));
  if (made.size_bytes() != item.data.size()) differs("of numbers of " + std::to_string(item.item_bytes) + " bytes");
  return made;
}

constexpr std::string_view unnamed = "arr_";  // as np.savez names what has no name, with its number

class Inputs {
 public:
  Inputs(const std::vector<Value>& values, bool is_vjp) : values_(values), found_(values.size()), is_vjp_(is_vjp) {
    std::set<std::string> ambiguous;  // long paths are cut
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!index_.emplace(values[i].path, i).second) ambiguous.insert(values[i].path);
    for (std::size_t i = 0; i < values.size(); ++i) {  // a shell takes quotes away: args[0]['w'] arrives as args[0][w]
      std::string unquoted = values[i].path;
      std::erase(unquoted, '\'');
      if (unquoted != values[i].path && !index_.emplace(unquoted, i).second) ambiguous.insert(unquoted);
    }
    for (const std::string& path : ambiguous) index_.erase(path);
  }

  /// Takes PATH=INPUT; says whether it is one.
  bool add_named(const std::string& text) {
    std::size_t at = text.find('=');
    for (; at != text.npos; at = text.find('=', at + 1))
      if (index_.contains(text.substr(0, at))) break;
    std::error_code ignored;
    const bool is_path =
        text.starts_with("args[") || text.starts_with("kwargs[") || !std::filesystem::exists(text, ignored);
    if (at == text.npos && is_path) at = text.rfind('=');
    if (at == text.npos) return false;
    const std::string path = text.substr(0, at);
    const auto found = index_.find(path);
    if (found == index_.end())
      throw InputError(
          text + ": the function has no argument " + path +
          (is_vjp_ ? "; a VJP's are args[0], args[1], ...: those of the function, then the cotangents of its results"
                     " ('--inspect --vjp N' lists them)"
                   : " ('--inspect' lists those that it has)"));
    add_input(found->second, text.substr(at + 1), text);
    return true;
  }

  void add(std::size_t index, Array array, const std::string& where) {
    if (found_[index]) throw InputError(where + " gives " + values_[index].path + " a second time");
    found_[index] = std::move(array);
  }

  /// The arguments that have not been given yet.
  std::vector<std::size_t> rest() const {
    std::vector<std::size_t> left;
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (!found_[i]) left.push_back(i);
    return left;
  }

  std::size_t at(const std::vector<std::size_t>& left, std::size_t position, const std::string& where) const {
    if (position < left.size()) return left[position];
    throw InputError("the function takes " + std::to_string(found_.size()) +
                     (found_.size() == 1 ? " argument; " : " arguments; ") + where + " is one more");
  }

  void add_npz(const std::string& name) {
    const auto left = rest();
    const File file = runtime::opened(name);
    const auto items = reading(name, [&] { return npy::read_npz(file->bytes()); });
    for (const auto& [member, item] : items) {
      const std::string where = name + ", '" + member.substr(0, 80) + "'";
      const auto named = index_.find(member);
      const std::size_t i = named == index_.end() ? at(left, position(member, where), where) : named->second;
      add(i, array(file, item, values_[i]), where);
    }
  }

  /// Of a file, or a number if the argument is a scalar.
  void add_input(std::size_t index, const std::string& text, const std::string& where) {
    const Value& value = values_[index];
    if (value.shape.empty() && !text.ends_with(".npy")) return add(index, scalar(text, value), where);
    std::error_code ignored;
    if (!text.ends_with(".npy") && !std::filesystem::exists(text, ignored)) refuse_input(text, value);
    const File file = runtime::opened(text);
    add(index, array(file, reading(text, [&] { return npy::read_npy(file->bytes()); }), value), where);
  }

  std::vector<Array> arrays() const {
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < found_.size(); ++i) {
      if (!found_[i]) throw InputError("no file gives " + values_[i].path + ", " + values_[i].str());
      arrays.push_back(*found_[i]);
    }
    return arrays;
  }

 private:
  static std::size_t position(const std::string& member, const std::string& where) {
    std::size_t index = 0;
    const char* const end = member.data() + member.size();
    const auto [rest, error] = std::from_chars(member.data() + std::min(unnamed.size(), member.size()), end, index);
    if (!member.starts_with(unnamed) || error != std::errc{} || rest != end)
      refuse(where + " names no argument ('--inspect' lists them)");
    return index;
  }

  const std::vector<Value>& values_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::optional<Array>> found_;
  bool is_vjp_;
};

}  // namespace

std::vector<Array> read_arguments(const Arguments& arguments, const std::vector<Value>& values) {
  Inputs inputs(values, arguments.vjp_order > 0);
  std::vector<std::string> in_order;
  for (const std::string& text : arguments.inputs)
    if (!inputs.add_named(text)) in_order.push_back(text);
  for (const std::string& text : in_order) {
    if (text.ends_with(".npz"))
      inputs.add_npz(text);
    else
      inputs.add_input(inputs.at(inputs.rest(), 0, text), text, text);
  }
  return inputs.arrays();
}

std::string npy_file(const Array& array) {
  static constexpr std::uint64_t number[2] = {};  // as large as any
  const Array one(array.dtype(), {1}, std::shared_ptr<const void>(std::shared_ptr<const void>(), number));
  const std::size_t item_bytes = one.size_bytes();
  std::string file = npy::npy_head(array.dtype(), item_bytes, array.shape());
  const std::size_t head = file.size();
  file.resize(head + array.size_bytes());
  array.copy_to(file.data() + head);
  return file;
}

std::vector<std::string> result_names(const std::vector<Value>& results) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const Value& value : results) {
    const bool is_free = taken.insert(value.path).second;  // a number names the others to readers of .npz files, too
    names.push_back(is_free ? value.path : std::string(unnamed) + std::to_string(names.size()));
  }
  return names;
}

void write_file(const std::string& file, const std::string& bytes) {
#ifndef _WIN32
  namespace fs = std::filesystem;
  try {
    if (!fs::exists(file) || fs::is_regular_file(file)) {
      const fs::path target = fs::weakly_canonical(file);  // a link stays
      const wire::TemporaryName temporary(target.parent_path());
      wire::WrittenFile(temporary.path(), O_CREAT | O_EXCL).write(bytes);
      return fs::rename(temporary.path(), target);
    }
  } catch (const std::system_error& error) {
    throw wire::file_error(error.code(), file);
  }
#endif
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw wire::file_error(errno == 0 ? EIO : errno, file);
}

std::size_t write_results(const std::string& file, const std::vector<Array>& results, const Artifact& function) {
  std::string bytes;
  if (file.ends_with(".npy")) {
    if (results.size() != 1)
      refuse("there are " + std::to_string(results.size()) + " results, and " + file + " holds one: name a .npz file");
    bytes = npy_file(results.front());
  } else {
    const std::vector<std::string> names = result_names(function.results());
    std::vector<std::pair<std::string, std::string>> files;
    for (std::size_t i = 0; i < results.size(); ++i) files.emplace_back(names[i], npy_file(results[i]));
    bytes = npy::npz(files);
  }
  write_file(file, bytes);
  return bytes.size();
}

}  // namespace jaxexp::command

// Python compares: this program has no rules about numbers.
#include "runtime/command/cases.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "jaxexp/version.h"
#include "runtime/command/arrays.h"
#include "runtime/command/drawn.h"
#include "runtime/command/words.h"
#include "runtime/npy/npy.h"
#include "runtime/plugin/flags.h"
#include "runtime/weights/files.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/hexadecimal.h"

#if __has_include(<sys/utsname.h>)
#include <sys/utsname.h>
#endif

namespace jaxexp::command {
namespace {

constexpr std::string_view float0 = "float0";  // of cotangents of integers: there are no numbers

/// A value as an array of these numbers. Throws RunError where there can be none of its shape.
Array array_of(const Case::Value& value, std::shared_ptr<const void> numbers) {
  std::string dtype = value.dtype == float0 ? "bool" : value.dtype;
  std::vector<std::int64_t> shape = value.shape;
  if (dtype.starts_with("key<")) {
    shape.push_back(dtype == "key<fry>" ? 2 : 4);
    dtype = "uint32";
  }
  return Array(dtype, std::move(shape), std::move(numbers));
}

Array array_of(const Case::Value& value, std::vector<std::uint8_t> bytes) {
  const auto owner = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  return array_of(value, std::shared_ptr<const void>(owner, owner->data()));
}

/// The same, without its numbers: for its size.
Array sized(const Case::Value& value) {
  static const char somewhere = 0;
  return array_of(value, {std::shared_ptr<const void>(), &somewhere});
}

/// The calls of cases. A case keeps nothing of another one but the code that was compiled, and the files that were
/// opened.
class Calls {
 public:
  Calls(const Function& function, const Cases& cases, const Arguments& options)
      : chain_{function}, table_{cases.files, cases.tensors, {}}, options_(options) {}

  /// Throws what a call throws, and WeightsError where a file beside the artifact is missing or damaged.
  std::vector<Array> results(const Case& one) { return vjp(one.vjp_order).call(arguments(one)); }

  /// The VJP of this order; 0 is the function itself.
  const Function& vjp(std::size_t order) {
    while (chain_.size() <= order) chain_.push_back(chain_.back().vjp().value());
    return chain_[order];
  }

 private:
  std::vector<Array> arguments(const Case& one) {
    std::uint64_t drawn = 0;
    for (const auto* values : {&one.arguments, &one.results})  // as Python counts: those of dtype float0 are made, too
      for (const Case::Value& value : *values)
        if (value.drawn || value.dtype == float0) drawn += sized(value).size_bytes();
    if (drawn > options_.max_drawn_bytes)
      throw RunError(RunError::Reason::argument, "its random arguments take " + counted(drawn, "byte") +
                                                     "; --max-drawn-bytes allows " +
                                                     with_commas(options_.max_drawn_bytes));
    std::vector<Array> arguments;
    for (const Case::Value& value : one.arguments) arguments.push_back(argument(value));
    return arguments;
  }

  Array argument(const Case::Value& value) {
    if (value.tensor) return array_of(value, of_tensor(*value.tensor));
    if (value.dtype == float0) return array_of(value, std::vector<std::uint8_t>(sized(value).size()));
    if (value.drawn) return array_of(value, draw(*value.drawn, value.dtype, sized(value).size_bytes()));
    return array_of(value, {std::shared_ptr<const void>(), value.data.data()});  // which the artifact keeps
  }

  std::shared_ptr<const void> of_tensor(std::size_t index) {
    if (found_.empty())
      found_ = table_.is_in_archive() ? runtime::find_in_archive(table_, nullptr)
                                      : runtime::find_beside(options_.artifact, table_, {options_.stable, {}});
    const runtime::FoundTensor& tensor = found_[index];
    const Weights::Tensor& stored = table_.tensors[index];
    if (const auto digest = wire::digest(tensor.bytes); digest != stored.digest)
      throw WeightsError(tensor.file, wire::shortened(stored.name),
                         "numbers with the digest " + wire::hexadecimal(stored.digest),
                         "others (" + wire::hexadecimal(digest) + "): the file is damaged");
    return {tensor.owner, tensor.bytes.data()};
  }

  std::vector<Function> chain_;  // the function, its VJP, and so on
  const Weights table_;
  const Arguments& options_;
  std::vector<runtime::FoundTensor> found_;  // when one is needed first
};

using Members = std::vector<std::pair<std::string, std::string>>;

/// A text of UTF-8 as JSON.
std::string text_json(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') {
      std::array<char, 8> code;
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      json += code.data();
      continue;
    }
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + '"';
}

/// Members with values in JSON.
std::string object_json(const Members& members) {
  std::string json;
  for (const auto& [name, value] : members) json += (json.empty() ? "" : ", ") + text_json(name) + ": " + value;
  return '{' + json + '}';
}

std::string processor() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);)
    if (const auto colon = line.find(": "); colon != line.npos && line.starts_with("model name"))
      return line.substr(colon + 2);
  return "";
}

/// As in "linux x86_64".
std::string system_name() {
#if __has_include(<sys/utsname.h>)
  utsname said;
  if (uname(&said) != 0) return "";
  std::string name = said.sysname;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name + ' ' + said.machine;
#else
  return "";
#endif
}

/// Where calls are made, in the words of recordings: python/jaxexp/_api/cases/machine.py names the same facts. There is
/// nothing of the machine's name, its user or its folders.
std::string environment(const Runtime& runtime) {
  Members facts = {{"platform", std::string(runtime.platform())},
                   {"devices", std::to_string(runtime.nr_devices())},
                   {"jaxexp", JAXEXP_VERSION},
                   {"system", system_name()},
                   {"processor", processor()},
                   {"XLA_FLAGS", runtime::xla_flags()}};
  for (auto& [fact, value] : facts) value = text_json(value);
  return object_json(facts);
}

std::string text_file(const std::string& text) {
  return npy::npy_head("uint8", 1, {static_cast<std::int64_t>(text.size())}) + text;
}

}  // namespace

Written write_cases(const Runtime& runtime, const Function& function, const Arguments& arguments) {
  const Cases cases = function.artifact().cases();
  if (cases.all.empty()) return {0, 0, {}};
  Calls calls(function, cases, arguments);
  Written written{cases.all.size(), 0, {}};
  Members files;
  std::string all;
  for (std::size_t i = 0; i < cases.all.size(); ++i) {
    const Case& one = cases.all[i];
    Members returned, results;
    std::string error = "null";
    try {
      const std::vector<Array> found = calls.results(one);
      const std::vector<Value> values = calls.vjp(one.vjp_order).results();
      const std::vector<std::string> names = result_names(values);
      for (std::size_t j = 0; j < found.size(); ++j) {
        const std::string name = std::to_string(i) + '/' + std::to_string(one.vjp_order) + '/' + names[j];
        returned.emplace_back(name, npy_file(found[j]));  // which waits for it
        results.emplace_back(name, text_json(values[j].path));
      }
    } catch (const std::exception& failure) {  // of whatever runs the function
      const std::string why = escaped(*failure.what() ? failure.what() : "it failed without a message");
      written.failed.push_back("case '" + std::string(one.name) + "' failed: " + why);
      error = text_json(why);
      returned.clear();
      results.clear();
    }
    std::ranges::move(returned, std::back_inserter(files));
    all += (i > 0 ? ", " : "") + object_json({{"name", text_json(one.name)},
                                              {"vjp_order", std::to_string(one.vjp_order)},
                                              {"error", error},
                                              {"results", object_json(results)}});
  }
  files.emplace_back("about", text_file(object_json({{"version", "1"},
                                                     {"artifact", text_json(wire::hexadecimal(cases.digest))},
                                                     {"function", text_json(function.artifact().function_name())},
                                                     {"checked", environment(runtime)},
                                                     {"cases", '[' + all + ']'}})));
  const std::string bytes = npy::npz(files);
  write_file(arguments.out, bytes);
  written.bytes = bytes.size();
  return written;
}

}  // namespace jaxexp::command

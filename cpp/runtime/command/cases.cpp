// Python compares: this program has no rules about numbers.
#include "runtime/command/cases.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "jaxexp/artifact.h"
#include "jaxexp/version.h"
#include "runtime/command/shown.h"
#include "runtime/command/small_float.h"
#include "runtime/npy/npy.h"
#include "runtime/plugin/flags.h"
#include "runtime/weights/files.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/text.h"

#if __has_include(<sys/utsname.h>)
#include <sys/utsname.h>
#endif

namespace jaxexp::command {
namespace {

// Philox4x32-10, whose counter is the number of a block, so that each number can be drawn by itself. This file is
// compiled so that no multiplication and addition become one operation, which would round once and not twice.

using Words = std::array<std::uint32_t, 4>;
using Distribution = Case::Drawn::Distribution;

Words philox(std::uint64_t seed, std::uint64_t block) {
  constexpr std::uint64_t multipliers[] = {0xD2511F53, 0xCD9E8D57};
  constexpr std::uint32_t weyl[] = {0x9E3779B9, 0xBB67AE85};
  constexpr int rounds = 10;
  Words words{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0};
  auto left = static_cast<std::uint32_t>(seed), right = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < rounds; ++round, left += weyl[0], right += weyl[1]) {
    const std::uint64_t first = words[0] * multipliers[0], second = words[2] * multipliers[1];
    words = {static_cast<std::uint32_t>(second >> 32) ^ words[1] ^ left, static_cast<std::uint32_t>(second),
             static_cast<std::uint32_t>(first >> 32) ^ words[3] ^ right, static_cast<std::uint32_t>(first)};
  }
  return words;
}

/// 64 bits, of which a block has two.
std::uint64_t wide(std::uint64_t seed, std::uint64_t index) {
  const Words words = philox(seed, index / 2);
  const std::size_t at = 2 * (index % 2);
  return words[at] | std::uint64_t{words[at + 1]} << 32;
}

std::int64_t whole(const Case::Drawn& drawn, std::uint64_t index) {
  const auto low = static_cast<std::int64_t>(drawn.first), high = static_cast<std::int64_t>(drawn.second);
  return low + static_cast<std::int64_t>(wide(drawn.seed, index) % static_cast<std::uint64_t>(high - low));
}

double real(const Case::Drawn& drawn, std::uint64_t index) {
  if (drawn.distribution == Distribution::integers) return static_cast<double>(whole(drawn, index));
  if (drawn.distribution == Distribution::uniform) {
    const double u = static_cast<double>(wide(drawn.seed, index) >> 11) * 0x1p-53;
    return drawn.first + (drawn.second - drawn.first) * u;
  }
  std::int64_t sum = 4 - (1 << 18);
  for (const std::uint32_t word : philox(drawn.seed, index)) sum += (word & 0xFFFF) + (word >> 16);
  constexpr double scale = 0x1.3988e1409212ep+0;  // the root of 3/2, for a deviation of 1
  return drawn.first + drawn.second * (static_cast<double>(sum) * 0x1p-16 * scale);
}

template <class T, class Make>
std::vector<std::uint8_t> filled(std::size_t size, const Make& make) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size / sizeof(T); ++i) {
    const auto number = static_cast<T>(make(i));
    std::memcpy(bytes.data() + i * sizeof(T), &number, sizeof(T));
  }
  return bytes;
}

/// So many bytes of numbers of a dtype; a random key is several numbers of uint32.
std::vector<std::uint8_t> draw(const Case::Drawn& drawn, std::string_view dtype, std::size_t bytes) {
  const auto reals = [&]<class T>(T) { return filled<T>(bytes, [&](std::size_t i) { return real(drawn, i); }); };
  if (dtype == "float32" || dtype == "complex64") return reals(float());
  if (dtype == "float64" || dtype == "complex128") return reals(double());
  if (const SmallFloat* const format = small_float(dtype)) {
    const auto bits = [&](std::size_t i) { return format->encoded(static_cast<float>(real(drawn, i))); };
    return format->bytes() == 1 ? filled<std::uint8_t>(bytes, bits) : filled<std::uint16_t>(bytes, bits);
  }
  const auto integers = [&]<class T>(T) { return filled<T>(bytes, [&](std::size_t i) { return whole(drawn, i); }); };
  if (dtype.ends_with("64")) return integers(std::uint64_t());
  if (dtype.ends_with("32") || dtype.starts_with("key<")) return integers(std::uint32_t());
  if (dtype.ends_with("16")) return integers(std::uint16_t());
  return integers(std::uint8_t());  // int4 and bool, too
}

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
                         "bytes with the digest " + wire::hexadecimal(stored.digest),
                         "the digest " + wire::hexadecimal(digest));
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

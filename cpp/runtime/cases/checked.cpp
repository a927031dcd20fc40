// A case keeps nothing of another one but the code that was compiled, and the files that were opened.
#include "runtime/cases/checked.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "runtime/cases/decoded.h"
#include "runtime/cases/drawn.h"
#include "runtime/cases/words.h"
#include "runtime/weights/files.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/hexadecimal.h"

namespace jaxexp::runtime {
namespace {

/// What a recording says, as formats/cases.md has it; empty if it says nothing.
std::string_view text_of(const Cases::Recording& recording, std::string_view key) {
  const auto found = std::ranges::find(recording, key, &Cases::Recording::value_type::first);
  return found == recording.end() ? "" : found->second;
}

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

/// The same, without its numbers: for its size.
Array sized(const Case::Value& value) {
  static const char somewhere = 0;
  return array_of(value, {std::shared_ptr<const void>(), &somewhere});
}

Array array_of(const Case::Value& value, std::vector<std::uint8_t> bytes) {
  const auto owner = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  return array_of(value, std::shared_ptr<const void>(owner, owner->data()));
}

class CaseArrays {
 public:
  CaseArrays(const Cases& cases, const std::filesystem::path& file, bool stable)
      : table_{cases.files, cases.tensors, {}}, file_(file), stable_(stable) {}

  Array of(const Case::Value& value) {
    if (value.tensor) return array_of(value, of_tensor(*value.tensor));
    if (value.dtype == float0) return array_of(value, std::vector<std::uint8_t>(sized(value).size()));
    if (value.drawn) return array_of(value, draw(*value.drawn, value.dtype, sized(value).size_bytes()));
    return array_of(value, {std::shared_ptr<const void>(), value.data.data()});  // which the artifact keeps
  }

 private:
  std::shared_ptr<const void> of_tensor(std::size_t index) {
    if (found_.empty())
      found_ = table_.is_in_archive() ? find_in_archive(table_, nullptr) : find_beside(file_, table_, {stable_, {}});
    const FoundTensor& tensor = found_[index];
    const Weights::Tensor& stored = table_.tensors[index];
    if (const auto digest = wire::digest(tensor.bytes); digest != stored.digest)
      throw WeightsError(tensor.file, wire::shortened(stored.name),
                         "numbers with the digest " + wire::hexadecimal(stored.digest),
                         "others (" + wire::hexadecimal(digest) + "): the file is damaged");
    return {tensor.owner, tensor.bytes.data()};
  }

  Weights table_;
  std::filesystem::path file_;
  bool stable_;
  std::vector<FoundTensor> found_;
};

class Checks {
 public:
  Checks(const Function& function, const Cases& cases, const std::filesystem::path& file, const CheckOptions& options)
      : chain_{function}, cases_(cases), arrays_(cases, file, options.stable), options_(options) {}

  std::vector<Compared> results(const Case& one) {
    const Function& function = vjp(one.vjp_order);
    const std::vector<Array> found = function.call(arguments(one));
    const std::vector<Value> values = function.results();
    std::vector<Compared> results;
    const std::string measured = ' ' + std::string(text_of(cases_.recordings[one.recording], "measured")) + ' ';
    for (std::size_t i = 0; i < one.results.size(); ++i) {
      const bool is_measured = measured.find(' ' + std::to_string(i) + ' ') != std::string::npos;
      results.push_back(compare(values[i].path, one.results[i], found[i], is_measured));
    }
    return results;
  }

 private:
  const Function& vjp(std::size_t order) {
    while (chain_.size() <= order) chain_.push_back(chain_.back().vjp().value());
    return chain_[order];
  }

  std::vector<Array> arguments(const Case& one) {
    std::uint64_t drawn = 0;
    for (const auto* values : {&one.arguments, &one.results})  // those of dtype float0 are not kept, either
      for (const Case::Value& value : *values)
        if (value.drawn || value.dtype == float0) drawn += sized(value).size_bytes();
    if (drawn > options_.max_drawn_bytes)
      throw RunError(RunError::Reason::argument, "its random arguments take " + counted(drawn, "byte") +
                                                     "; --max-drawn-bytes allows " +
                                                     with_commas(options_.max_drawn_bytes));
    std::vector<Array> arguments;
    for (const Case::Value& value : one.arguments) arguments.push_back(arrays_.of(value));
    return arguments;
  }

  Compared compare(const std::string& path, const Case::Value& value, const Array& found, bool is_measured) {
    const Case::Tolerance* const given = options_.tolerance ? &*options_.tolerance : nullptr;
    const Case::Tolerance* const own = value.tolerance ? &*value.tolerance : nullptr;
    const Whose of_case = is_measured ? Whose::recording : Whose::case_;
    const Whose whose = given ? Whose::check : own ? of_case : Whose::dtype;
    return compared(path, value.dtype, arrays_.of(value), found, given ? given : own, whose);
  }

  std::vector<Function> chain_;  // the function, its VJP, and so on
  const Cases& cases_;
  CaseArrays arrays_;
  const CheckOptions& options_;
};

std::string summary(const std::vector<Compared>& results, Verdict verdict) {
  if (verdict == Verdict::equal) return counted(results.size(), "result") + " with the same bits";
  if (verdict == Verdict::differs) {
    const auto wrong = std::ranges::count(results, Verdict::differs, &Compared::verdict);
    return with_commas(static_cast<std::uint64_t>(wrong)) + " of " + counted(results.size(), "result") +
           (wrong == 1 ? " differs" : " differ");
  }
  const Compared& largest = *std::ranges::max_element(results, {}, &Compared::max_absolute);
  return "within the tolerance; " + largest.path + " by at most " + three_digits(largest.max_absolute) +
         (largest.max_ulps > 0 ? ", " + with_commas(largest.max_ulps) + " ulps" : "");
}

}  // namespace

Verdict Checked::verdict() const {
  if (!error.empty()) return Verdict::failed;
  Verdict worst = Verdict::equal;
  for (const Compared& result : results) worst = std::max(worst, result.verdict);
  return worst;
}

std::string Checked::str() const {
  const std::string called = vjp_order == 0 ? name : name + " (VJP of order " + std::to_string(vjp_order) + ')';
  return called + ": " + (error.empty() ? summary(results, verdict()) : error);
}

std::vector<std::string> Checked::lines() const {
  std::vector<std::string> lines;
  for (const Compared& result : results)
    if (result.verdict == Verdict::differs) lines.push_back(result.str());
  if (verdict() != Verdict::differs) return lines;
  if (const auto said = text_of(*recorded, "unstable"); !said.empty())
    lines.push_back("unstable when it was recorded: " + std::string(said));
  lines.push_back(std::string("the first operation that differs: ") +
                  (has_trace ? "a trace was recorded, which a check by JAX compares"
                             : "no trace was recorded; 'record --trace', where the results are right, lets later "
                               "checks name it"));
  return lines;
}

std::vector<Checked> checked(const Function& function, const Cases& cases, const std::filesystem::path& file,
                             const CheckOptions& options) {
  Checks checks(function, cases, file, options);
  std::vector<Checked> all;
  for (const Case& one : cases.all) {
    Checked& made =
        all.emplace_back(std::string(one.name), one.vjp_order, &cases.recordings[one.recording], one.has_trace);
    try {
      made.results = checks.results(one);
    } catch (const std::exception& error) {  // of whatever runs the function
      made.error = *error.what() ? error.what() : "it failed without a message";
    }
  }
  return all;
}

}  // namespace jaxexp::runtime

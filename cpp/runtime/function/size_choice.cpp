// Of each set of variables that could be padded, the smallest sizes are asked about.
#include "runtime/function/size_choice.h"

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {
namespace {

using Reason = RunError::Reason;

constexpr std::size_t most_listed = 64;  // as many as BySizes keeps

double product(const Variables& sizes) {
  double product = 1;
  for (const auto& [name, size] : sizes) product *= static_cast<double>(size);
  return product;
}

}  // namespace

std::string listed(const std::set<std::string_view>& variables) {
  std::string text;
  for (const std::string_view name : variables) (text += text.empty() ? "" : ", ") += name;
  return variables.empty() ? "no dimension variable" : text;
}

std::string wanted_sizes(const std::set<std::string_view>& variables) {
  return variables.empty() ? "no sizes, because it has no symbolic dimensions"
                           : "a size of at least 1 for each of " + listed(variables);
}

std::optional<Variables> variables_of(const std::map<std::string, std::int64_t>& sizes,
                                      const std::set<std::string_view>& names) {
  Variables found;
  for (const std::string_view name : names)
    if (const auto size = sizes.find(std::string(name)); size != sizes.end() && size->second > 0)
      found.emplace(name, size->second);
  return found.size() == sizes.size() && found.size() == names.size() ? std::optional(std::move(found)) : std::nullopt;
}

SizeChoice::SizeChoice(std::string name, const std::set<std::string_view>& variables, const SizeOptions& options)
    : name_(std::move(name)), pads_(options.pad), only_(options.only && !variables.empty()) {
  for (const auto& sizes : options.sizes) {
    auto found = variables_of(sizes, variables);
    if (!found || variables.empty()) {
      std::set<std::string_view> names;
      for (const auto& [name, size] : sizes) names.insert(name);
      throw RunError(Reason::argument,
                     name_ + " takes " + wanted_sizes(variables) + ", found sizes of " + runtime::listed(names));
    }
    if (std::ranges::find(listed_, *found) == listed_.end()) listed_.push_back(std::move(*found));
  }
  if (listed_.size() > most_listed)
    throw RunError(Reason::argument, name_ + " takes at most " + std::to_string(most_listed) +
                                         " sets of sizes, and not " + std::to_string(listed_.size()));
  if (only_ && listed_.empty())
    throw RunError(Reason::argument, name_ +
                                         " must run for listed sizes only, but no sizes are listed: give sizes of " +
                                         runtime::listed(variables) + ", or save it with sizes");
  std::ranges::stable_sort(listed_, {}, product);
}

std::shared_ptr<const SizeChoice::Chosen> SizeChoice::chosen(const Variables& given, const WhyNot& why_not) const {
  return known_.get(given, [&] { return choose(given, why_not); });
}

SizeChoice::Chosen SizeChoice::choose(const Variables& given, const WhyNot& why_not) const {
  if (std::ranges::find(listed_, given) != listed_.end()) return {given, {}};
  std::string reason;
  std::set<std::set<std::string_view>> tried;
  for (const Variables& candidate : listed_) {
    if (!pads_) break;
    std::set<std::string_view> larger;
    bool fits = true;
    for (const auto& [name, size] : given) {
      fits &= size <= candidate.at(name);
      if (size < candidate.at(name)) larger.insert(name);
    }
    if (!fits || !tried.insert(std::move(larger)).second) continue;
    const auto found = why_not(given, candidate);
    if (!found) return {candidate, {}};
    if (reason.empty()) reason = str(candidate) + ": " + *found;
  }
  if (only_) {
    std::string all;
    for (const Variables& one : listed_) (all += all.empty() ? "" : " or ") += str(one);
    throw RunError(Reason::argument,
                   name_ + " runs for " + all + " only, and not for " + str(given) +
                       (reason.empty() ? pads_ ? ", which is larger" : "" : ", which cannot be padded to " + reason));
  }
  return {given, std::move(reason)};
}

}  // namespace jaxexp::runtime

// Weights stay on the devices between calls, and no call donates them.
#include "runtime/function/bound.h"

#include <algorithm>
#include <string>
#include <utility>

#include "jaxexp/run_error.h"
#include "wire/api/beside_weights.h"

namespace jaxexp::runtime {

Arrays PlacedWeights::arguments_of(const Callable& callable) const {
  const std::vector<Numbers>& numbers = host_->numbers();
  Arrays arguments;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!callable.uses(i)) {
      arguments.push_back(std::make_shared<const Numbers>(numbers[i]));
      continue;
    }
    auto& there = placed_[i];
    auto found = std::ranges::find_if(there, [&](const auto& placed) { return callable.has_in_place(i, *placed); });
    if (found == there.end()) found = there.insert(found, callable.put(i, numbers[i]));
    arguments.push_back(*found);
  }
  return arguments;
}

Bound::Bound(std::shared_ptr<const Callable> callable, std::shared_ptr<const PlacedWeights> weights, bool is_vjp,
             bool stable)
    : callable_(std::move(callable)),
      weights_(std::move(weights)),
      is_vjp_(is_vjp),
      stable_(stable),
      is_placed_(!weights_) {
  const auto named = callable_->artifact().weights();
  names_weights_ = named && !named->tensors.empty();
}

const Arrays& Bound::placed() const {
  if (is_placed_) return placed_;
  static_cast<void>(PluginCall());  // after a fork, the mutex may stay locked
  const std::lock_guard lock(mutex_);
  if (is_placed_) return placed_;
  placed_ = weights_->arguments_of(*callable_);
  is_placed_ = true;
  callable_->client()->say(std::string(callable_->artifact().function_name()) + ": its " +
                           std::to_string(placed_.size()) + " weights are on the devices");
  return placed_;
}

std::string Bound::as_called(const std::string& text) const {
  if (is_vjp_ || names_weights_ == (weights_ != nullptr)) return text;
  return weights_ ? wire::beside_weights(text) : wire::with_weights(text);
}

Arrays Bound::call(Arguments arguments, Times* times) const {
  const PluginCall call;  // those that it needs are in this one
  const std::size_t expected = callable_->arguments().size() - nr_weights();
  if (arguments.size() != expected)
    throw RunError(RunError::Reason::argument,
                   std::string(callable_->artifact().function_name()) + " takes " + std::to_string(expected) +
                       (expected == 1 ? " argument" : " arguments") + (weights_ ? " beside its weights" : "") +
                       ", and not " + std::to_string(arguments.size()));
  std::vector<const Numbers*> all;
  if (weights_) {
    all.reserve(callable_->arguments().size());
    for (const auto& weight : placed()) all.push_back(weight.get());
    all.insert(all.end(), arguments.begin(), arguments.end());
    arguments = all;
  }
  try {
    return callable_->call(arguments, times);
  } catch (const RunError& error) {
    std::string text = as_called(error.what());
    if (error.reason() != RunError::Reason::unsupported)  // which is about the function, and names it
      text = "calling " + std::string(callable_->artifact().function_name()) + ": " + text;
    throw RunError(error.reason(), text);
  }
}

}  // namespace jaxexp::runtime

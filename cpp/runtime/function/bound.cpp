// Weights stay on the devices between calls, and no call donates them.
#include "runtime/function/bound.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "jaxexp/run_error.h"
#include "wire/api/beside_weights.h"
#include "wire/base/error.h"

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

void Bound::compile(const std::map<std::string, std::int64_t>* sizes) const {
  const std::vector<Variables> compiled = sizes ? callable_->compile(*sizes) : callable_->compile();
  if (!callable_->size_options().warm_up) return;
  if (weights_) static_cast<void>(placed());
  if (callable_->may_be_tried())
    for (const Variables& one : compiled) warm_up(one);
  else
    callable_->client()->say(std::string(callable_->artifact().function_name()) +
                             ": not called with zeros: it may do more than compute, or never end");
}

/// The first run of code takes longer, also in the plugin: nobody should wait for that in a call. A call may fail for
/// zeros. Then the first one may, too.
void Bound::warm_up(const Variables& sizes) const {
  const std::string name =
      std::string(callable_->artifact().function_name()) + (sizes.empty() ? "" : " for " + str(sizes));
  Arrays zeros;
  std::vector<const Numbers*> arguments;
  for (std::size_t i = nr_weights(); i < callable_->arguments().size(); ++i) {
    const Parameter& parameter = callable_->arguments()[i];
    Numbers numbers{parameter.type, parameter.shape(sizes), nullptr, nullptr, {}};
    const auto bytes = std::make_shared<const std::vector<std::byte>>(std::max<std::size_t>(size_bytes(numbers), 1));
    numbers.data = bytes->data(), numbers.owner = bytes;
    arguments.push_back(zeros.emplace_back(std::make_shared<const Numbers>(std::move(numbers))).get());
  }
  try {
    CallTimes times;  // so that it waits
    static_cast<void>(call(arguments, &times));
    callable_->client()->say(name + ": called once with zeros");
  } catch (const std::exception& error) {
    callable_->client()->say(name + ": cannot be called with zeros: " + wire::escaped(error.what()));
  }
}

Arrays Bound::call(Arguments arguments, CallTimes* times) const {
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

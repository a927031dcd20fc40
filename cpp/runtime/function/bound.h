// A function together with its weights, which go in front of the arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/function/callable.h"
#include "runtime/weights/weights.h"

namespace jaxexp::runtime {

/// Weights on devices: each is there once for each way in which functions need it there.
class PlacedWeights {
 public:
  explicit PlacedWeights(std::shared_ptr<const HostWeights> host) : host_(std::move(host)), placed_(host_->size()) {}

  const HostWeights& host() const { return *host_; }

  /// The first arguments of a function, those that its module uses where it needs them. Throws what
  /// `HostWeights::numbers` does.
  Arrays arguments_of(const Callable& callable) const;

 private:
  std::shared_ptr<const HostWeights> host_;
  mutable std::mutex mutex_;
  mutable std::vector<Arrays> placed_;
};

/// May be called by several threads at once.
class Bound {
 public:
  /// `weights` may be null: then the function takes all of its arguments. A VJP counts them in Python, too. Other
  /// weights that the function gets are to be `stable`, or not.
  Bound(std::shared_ptr<const Callable> callable, std::shared_ptr<const PlacedWeights> weights, bool is_vjp,
        bool stable);

  const std::shared_ptr<const Callable>& callable() const { return callable_; }
  const std::shared_ptr<const PlacedWeights>& weights() const { return weights_; }
  std::size_t nr_weights() const { return weights_ ? weights_->host().size() : 0; }

  bool is_vjp() const { return is_vjp_; }
  bool stable() const { return stable_; }

  /// A text that may begin with the path of an argument in the artifact, with the path in a call of this function.
  std::string as_called(const std::string& text) const;

  /// The weights on devices; none where there are none. Throws what `HostWeights::numbers` does.
  const Arrays& placed() const;

  /// As Function has it in jaxexp/runtime.h. `sizes` may be null.
  void compile(const std::map<std::string, std::int64_t>* sizes) const;

  /// `times` may be null: then nothing waits for the results.
  Arrays call(Arguments arguments, CallTimes* times) const;

 private:
  void warm_up(const Variables& sizes) const;

  std::shared_ptr<const Callable> callable_;
  std::shared_ptr<const PlacedWeights> weights_;
  bool is_vjp_, stable_;
  bool names_weights_;  // and its paths are those of a call that gets them
  mutable std::mutex mutex_;
  mutable Arrays placed_;
  mutable std::atomic<bool> is_placed_;
};

}  // namespace jaxexp::runtime

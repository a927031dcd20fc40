// The functions of an artifact: the one that was exported, its VJP, the VJP's VJP, and so on.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "exported_generated.h"

namespace jaxexp::wire {

/// For range-based loops, the primal first. The artifact has to be verified.
class Chain {
 public:
  struct Link {
    std::size_t order;  // how many VJPs deep
    const schema::Exported& function;
  };

  class Iterator {
   public:
    explicit Iterator(const schema::Exported* function) : function_(function) {}

    Link operator*() const { return {order_, *function_}; }
    Iterator& operator++() {
      function_ = function_->vjp();
      ++order_;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return function_ == nullptr; }

   private:
    const schema::Exported* function_;
    std::size_t order_ = 0;
  };

  explicit Chain(const schema::Exported& root) : root_(&root) {}

  Iterator begin() const { return Iterator(root_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  const schema::Exported* root_;
};

/// The path of a function's field for errors, such as "vjp.vjp.fun_name"; without a field, that of the function.
inline std::string path_in_chain(std::size_t order, std::string_view field = {}) {
  std::string path;
  for (std::size_t i = 0; i < order; ++i) path += i == 0 ? "vjp" : ".vjp";
  if (order > 0 && !field.empty()) path += '.';
  return path += field;
}

}  // namespace jaxexp::wire

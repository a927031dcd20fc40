// Which functions of a module call which others, and how deep calls nest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/base/flat_map.h"
#include "wire/bytecode/cursor.h"

namespace jaxexp::wire {

/// Compilers follow calls without an end of their own, on the stack of a thread. Functions have the hashes of their
/// names, which are not 0.
class CallGraph {
 public:
  std::size_t size() const { return functions_.size(); }
  /// What is called from now on is called by this function.
  void begin(std::uint64_t function);
  /// `depth` is the number of regions around the call, in the function that began. `in_body` says whether one of them
  /// combines or compares elements (wire/bytecode/inventory.h, `in_bodies`).
  void call(std::uint64_t function, unsigned depth, bool in_body);
  /// Throws Error if a function calls itself, also by others, or if calls nest too deeply.
  void check(const Cursor& at);
  /// Whether each function, in the order in which they began, is called in a body, or by one that is.
  std::vector<bool> called_in_bodies();

 private:
  struct Call {
    std::uint64_t function;
    unsigned depth;
    bool in_body;
  };
  struct Function {
    std::size_t first_call = 0;  // into calls_; those of a function end where the next one's begin
    unsigned depth = 0;
  };

  std::span<const Call> calls_of(std::size_t function) const;

  FlatMap<std::size_t> numbers_;  // by names, counted from 1
  std::vector<Function> functions_;
  std::vector<Call> calls_;
};

}  // namespace jaxexp::wire

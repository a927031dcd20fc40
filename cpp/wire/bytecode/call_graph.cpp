#include "wire/bytecode/call_graph.h"

#include <algorithm>

namespace jaxexp::wire {
namespace {

// Calls and the regions around them: XLA compiles 180 of them inside of one another, and crashes at 190.
constexpr unsigned max_depth = 160;

}  // namespace

void CallGraph::begin(std::uint64_t function) {
  functions_.push_back({calls_.size()});
  numbers_.insert(function).first = functions_.size();
}

void CallGraph::call(std::uint64_t function, unsigned depth, bool in_body) {
  if (!functions_.empty()) calls_.push_back({function, depth, in_body});
}

std::span<const CallGraph::Call> CallGraph::calls_of(std::size_t function) const {
  const std::size_t begin = functions_[function].first_call;
  const std::size_t end = function + 1 < functions_.size() ? functions_[function + 1].first_call : calls_.size();
  return std::span(calls_).subspan(begin, end - begin);
}

std::vector<bool> CallGraph::called_in_bodies() {
  std::vector<bool> found(functions_.size());
  std::vector<std::size_t> open;
  const auto note = [&](const Call& call) {
    const std::size_t number = numbers_.insert(call.function).first;
    if (number == 0 || found[number - 1]) return;
    found[number - 1] = true;
    open.push_back(number - 1);
  };
  for (const Call& call : calls_)
    if (call.in_body) note(call);
  while (!open.empty()) {
    const std::size_t function = open.back();
    open.pop_back();
    std::ranges::for_each(calls_of(function), note);
  }
  return found;
}

/// Depth first, without recursion.
void CallGraph::check(const Cursor& at) {
  constexpr unsigned unknown = 0, open = UINT32_MAX;
  struct Place {
    std::size_t function, next;
  };
  std::vector<unsigned> depths(functions_.size(), unknown);  // with the function itself
  std::vector<Place> path;
  const auto number_of = [&](const Call& call) { return numbers_.insert(call.function).first; };
  for (std::size_t start = 0; start < functions_.size(); ++start) {
    if (depths[start] == unknown) path.push_back({start, functions_[start].first_call});
    while (!path.empty()) {
      auto& [function, next] = path.back();
      const std::size_t end = function + 1 < functions_.size() ? functions_[function + 1].first_call : calls_.size();
      depths[function] = open;
      std::size_t callee = 0;
      for (; next < end; ++next) {
        callee = number_of(calls_[next]);
        if (callee == 0) continue;  // MLIR says that there is no such function
        if (depths[callee - 1] == open) at.refuse("a function that calls itself");
        if (depths[callee - 1] == unknown) break;
      }
      if (next < end) {
        path.push_back({callee - 1, functions_[callee - 1].first_call});
        continue;
      }
      unsigned depth = 1;
      for (std::size_t i = functions_[function].first_call; i < end; ++i)
        if (const std::size_t number = number_of(calls_[i]))
          depth = std::max(depth, calls_[i].depth + 1 + depths[number - 1]);
      if (depth > max_depth) at.refuse("functions that call one another too deeply");
      depths[function] = depth;
      path.pop_back();
    }
  }
}

}  // namespace jaxexp::wire

// Tokens say in which order a function's effects happen. Between calls, the caller of the module sees to the order.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/adapt/adapt.h"
#include "runtime/refine/parts.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block;
using refine::Id;
using refine::Operation;
using refine::Tables;

/// Gives the values from `first` on these numbers, wherever a block uses them.
void renumber(Block& block, Id first, const std::vector<Id>& numbers) {
  for (Operation& one : block.operations) {
    for (Id& value : one.operands)
      if (value - first < numbers.size()) value = numbers[value - first];
    for (auto& region : one.regions)
      for (Block& inside : region) renumber(inside, first, numbers);
  }
}

/// Takes away what stands where these types are tokens.
template <typename T>
std::vector<T> without(const std::vector<T>& all, const std::vector<bool>& are_tokens) {
  std::vector<T> left;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i >= are_tokens.size() || !are_tokens[i]) left.push_back(all[i]);
  return left;
}

Operation* main_of(Tables& tables, Block& top) {
  if (top.operations.size() != 1 || top.operations.front().regions.size() != 1) return nullptr;
  for (Block& block : top.operations.front().regions.front())
    for (Operation& one : block.operations) {
      if (tables.kind(one.kind).full_name() != "vhlo.func_v1" || one.regions.size() != 1) continue;
      if (tables.text(tables.needed(one, "sym_name")) == "main" && one.regions.front().size() == 1) return &one;
    }
  return nullptr;
}

}  // namespace

std::vector<std::uint8_t> without_tokens(std::span<const std::uint8_t> module, const wire::Path& where,
                                         std::size_t effects) {
  refine::Parts parts(module, where);
  Tables& tables = parts.tables();
  const refine::Code code = parts.code();
  Block top = code.top;
  Operation* const main = main_of(tables, top);
  if (!main) refine::refuse("it has no main function");
  Block& body = main->regions.front().front();
  const auto [arguments, results] = tables.function(tables.needed(*main, "function_type"));
  const auto are_tokens = [&](const std::vector<Id>& types) {
    std::vector<bool> found;
    for (const Id type : types) found.push_back(tables.is_token(type));
    return found;
  };
  const auto taken = are_tokens(arguments), returned = are_tokens(results);
  const auto count = [](const std::vector<bool>& found) {
    return static_cast<std::size_t>(std::ranges::count(found, true));
  };
  if (count(taken) != effects || count(returned) != effects || body.arguments.size() != arguments.size() ||
      body.operations.empty() || body.operations.back().operands.size() != results.size())
    refine::refuse("its main function takes " + std::to_string(count(taken)) + " tokens and returns " +
                   std::to_string(count(returned)) + " for " + std::to_string(effects) + " ordered effects");

  Operation& last = body.operations.back();
  last.operands = without(last.operands, returned);
  Id next = code.values;
  std::vector<Id> numbers(taken.size());
  std::vector<Operation> made;
  for (std::size_t i = 0; i < taken.size(); ++i)
    if (!taken[i]) numbers[i] = next++;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (!taken[i]) continue;
    Operation& token = made.emplace_back();
    token.kind = tables.vhlo_kind("after_all_v1");
    token.location = main->location;
    token.results = {arguments[i]};
    token.first_result = numbers[i] = next++;
  }
  renumber(body, body.first_argument, numbers);
  body.arguments = without(body.arguments, taken);
  body.first_argument = code.values;
  body.operations.insert(body.operations.begin(), std::make_move_iterator(made.begin()),
                         std::make_move_iterator(made.end()));
  const Id type = tables.function_type(without(arguments, taken), without(results, returned));
  tables.replace_attribute(*main, "function_type", tables.type_attribute(type));
  for (const auto& [name, which] : {std::pair("arg_attrs", &taken), std::pair("res_attrs", &returned)})
    if (const auto attributes = tables.attribute(*main, name))
      tables.replace_attribute(*main, name, tables.array_attribute(without(tables.array(*attributes), *which)));
  return parts.written(top);
}

}  // namespace jaxexp::runtime::adapt

// Both modules come from one: so their operations follow each other in the same order, up to constants, and what is the
// same attribute or type has the same number.
#include "runtime/refine/padding.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"
#include "runtime/refine/code.h"
#include "runtime/refine/padding_rules.h"
#include "runtime/refine/parts.h"
#include "runtime/refine/refiner.h"
#include "runtime/refine/tables.h"

namespace jaxexp::runtime::refine {
namespace {

/// What keeps a value from beginning with the value without padding.
struct Cause {
  enum Kind { mixes, uses_size, is_unknown, has_effect } kind;
  const Operation* operation;
};

/// Of a value: null where it begins with the value without padding.
using Changed = const Cause*;
using Changes = std::vector<Changed>;

/// The causes that no value has: they end everything.
struct Ended {
  Cause cause;
};
struct OtherCode {};

class Comparison {
 public:
  Comparison(Tables& tables, const Block& given, const Block& padded, std::size_t size)
      : tables_(tables),
        sides_{Side(tables, given), Side(tables, padded)},
        left_((1u << 18) + 4 * std::uint64_t{size}) {}

  /// What changes a result of the main function.
  Changed of_results() {
    const Operation &given = sides_[0].function("main"), &padded = sides_[1].function("main");
    const Changes none(body(given).arguments.size(), nullptr);
    const Changes found = block(body(given), body(padded), none);
    const auto changed = std::ranges::find_if(found, [](Changed one) { return one != nullptr; });
    return changed == found.end() ? nullptr : *changed;
  }

 private:
  struct Value {
    Id type;
    Id other = 0;  // the value of the other side, of values that are no constants
    Changed changed = nullptr;
    std::optional<Id> attribute = {};      // of constants
    std::optional<std::int64_t> all = {};  // all elements, where they are the same integer
    bool is_constant = false;
  };

  struct Side {
    Side(Tables& tables, const Block& top) {
      for (const Operation& one : top.operations.front().regions.front().front().operations)
        if (!one.regions.empty() && tables.kind(one.kind).full_name() == "vhlo.func_v1")
          functions.emplace(tables.text(tables.needed(one, "sym_name")), &one);
    }
    const Operation& function(std::string_view name) const { return *functions.at(name); }

    std::unordered_map<std::string_view, const Operation*> functions;
    std::unordered_map<Id, Value> values;
  };

  static const Block& body(const Operation& operation) { return operation.regions.at(0).at(0); }

  Changes block(const Block& given, const Block& padded, const Changes& arguments);
  Changes function(const Operation& given, const Operation& padded, std::string_view attribute,
                   const Changes& arguments);
  Changes operation(const Operation& given, const Operation& padded);
  Changes loop(const Operation& given, const Operation& padded, Changes carried);
  Changes branches(const Operation& given, const Operation& padded, Changed index);
  Changed followed_rule(const Operation& given, const Operation& padded);
  Changes operands(const Operation& given, const Operation& padded);
  Changed compared(const Operation& user, Id given, Id padded);
  bool noted_constant(Side& side, const Operation& operation);
  bool fits(Id given, Id padded);
  std::optional<Shapes> shapes(Id given, Id padded);
  bool has_same_attributes(const Operation& given, const Operation& padded, std::string_view may_differ) const;
  void spend() {
    if (left_-- == 0) refuse("its functions call one another, or its loops nest, too often");
  }
  Changed cause(Cause::Kind kind, const Operation& operation) { return &causes_.emplace_back(Cause{kind, &operation}); }

  Tables& tables_;
  std::array<Side, 2> sides_;
  std::deque<Cause> causes_;
  std::map<std::pair<std::pair<const Operation*, const Operation*>, std::vector<bool>>, Changes> called_;
  unsigned depth_ = 0;
  std::uint64_t left_;  // operations that may still be looked at
};

/// What the end of a block returns, where its arguments are these.
Changes Comparison::block(const Block& given, const Block& padded, const Changes& arguments) {
  if (given.arguments.size() != arguments.size() || padded.arguments.size() != arguments.size()) throw OtherCode();
  if (++depth_ > max_depth) refuse("its code nests too deeply");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Id a = given.first_argument + static_cast<Id>(i), b = padded.first_argument + static_cast<Id>(i);
    sides_[0].values[a] = {given.arguments[i].type, b, arguments[i]};
    sides_[1].values[b] = {padded.arguments[i].type};
  }
  auto a = given.operations.begin(), b = padded.operations.begin();
  Changes found;
  for (;; ++a, ++b) {
    while (a != given.operations.end() && noted_constant(sides_[0], *a)) ++a;
    while (b != padded.operations.end() && noted_constant(sides_[1], *b)) ++b;
    if (a == given.operations.end() || b == padded.operations.end()) break;
    spend();
    if (a->kind != b->kind || a->operands.size() != b->operands.size() || a->results.size() != b->results.size() ||
        a->regions.size() != b->regions.size())
      throw OtherCode();
    if (tables_.kind(a->kind).full_name() == "vhlo.return_v1") {
      found = operands(*a, *b);
      continue;
    }
    Changes changes = operation(*a, *b);
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const Id type = a->results[i], other_type = b->results[i];
      if (!changes[i] && !fits(type, other_type)) changes[i] = cause(Cause::mixes, *a);
      const Id one = a->first_result + static_cast<Id>(i), other = b->first_result + static_cast<Id>(i);
      sides_[0].values[one] = {type, other, changes[i]};
      sides_[1].values[other] = {other_type};
    }
  }
  if (a != given.operations.end() || b != padded.operations.end()) throw OtherCode();
  --depth_;
  return found;
}

/// Constants are compared where they are used: what is one with few elements may be computed with many.
bool Comparison::noted_constant(Side& side, const Operation& operation) {
  const Tables::Kind& kind = tables_.kind(operation.kind);
  if (!kind.is_vhlo || operation.results.size() != 1) return false;
  spend();
  Value value{operation.results[0]};
  value.is_constant = true;
  if (kind.base == "constant") {
    value.attribute = tables_.needed(operation, "value");
    if (const auto numbers = tables_.integers(*value.attribute); numbers && !numbers->empty()) {
      const auto is_first = [&](std::int64_t number) { return number == numbers->front(); };
      if (std::ranges::all_of(*numbers, is_first)) value.all = numbers->front();
    }
  } else if ((kind.base == "broadcast_in_dim" || kind.base == "reshape") && operation.operands.size() == 1) {
    const auto operand = side.values.find(operation.operands[0]);
    if (operand == side.values.end() || !operand->second.all) return false;
    value.all = operand->second.all;
  } else {
    return false;
  }
  side.values[operation.first_result] = value;
  return true;
}

Changes Comparison::operands(const Operation& given, const Operation& padded) {
  Changes found;
  for (std::size_t i = 0; i < given.operands.size(); ++i)
    found.push_back(compared(given, given.operands[i], padded.operands[i]));
  return found;
}

Changed Comparison::compared(const Operation& user, Id given, Id padded) {
  const Value &a = sides_[0].values.at(given), &b = sides_[1].values.at(padded);
  if (a.is_constant != b.is_constant) throw OtherCode();
  if (!a.is_constant) return a.other == padded ? a.changed : cause(Cause::uses_size, user);
  const bool is_same = a.all ? a.all == b.all && fits(a.type, b.type) : a.attribute && a.attribute == b.attribute;
  return is_same ? nullptr : cause(Cause::uses_size, user);
}

std::optional<Shapes> Comparison::shapes(Id given, Id padded) {
  const Type &a = tables_.type(given), &b = tables_.type(padded);
  if (!a.is_tensor || !b.is_tensor || a.element != b.element || a.shape.size() != b.shape.size()) return std::nullopt;
  return Shapes{a.shape, b.shape};
}

/// Whether a value of one type can begin with one of the other.
bool Comparison::fits(Id given, Id padded) {
  const auto both = shapes(given, padded);
  return both ? std::ranges::equal(both->given, both->padded, std::less_equal<>()) : given == padded;
}

Changes Comparison::operation(const Operation& given, const Operation& padded) {
  const Tables::Kind& kind = tables_.kind(given.kind);
  const std::size_t results = given.results.size();
  const Changes changes = operands(given, padded);
  if (kind.is_vhlo && kind.base == "call") return function(given, padded, "callee", changes);
  if (kind.is_vhlo && kind.base == "composite") return function(given, padded, "decomposition", changes);
  if (kind.is_vhlo && kind.base == "while") return loop(given, padded, changes);
  if (kind.is_vhlo && (kind.base == "case" || kind.base == "if"))
    return branches(given, padded, changes.empty() ? nullptr : changes.front());
  const Changed broken = followed_rule(given, padded);  // which also finds side effects
  const auto first = std::ranges::find_if(changes, [](Changed one) { return one != nullptr; });
  return Changes(results, first != changes.end() ? *first : broken);
}

/// What breaks the rule of an operation, if its operands begin with the same elements.
Changed Comparison::followed_rule(const Operation& given, const Operation& padded) {
  const Tables::Kind& kind = tables_.kind(given.kind);
  const bool is_call = kind.is_vhlo && kind.base == "custom_call";
  const bool is_constraint = kind.full_name() == "sdy.sharding_constraint";
  const Rule* const rule = is_call         ? rule_of_call(tables_.text(tables_.needed(given, "call_target_name")))
                           : is_constraint ? rule_of_call("Sharding")
                           : kind.is_vhlo  ? rule_of(kind.base)
                                           : nullptr;
  if (!rule) {
    const bool has_effect = is_call && tables_.boolean(tables_.needed(given, "has_side_effect"));
    if (has_effect || given.results.empty()) throw Ended{{Cause::has_effect, &given}};
    return cause(Cause::is_unknown, given);
  }
  for (std::size_t i = 0; i < given.regions.size(); ++i) {
    const Block &inside = given.regions[i].at(0), &other = padded.regions[i].at(0);
    const Changes found = block(inside, other, Changes(inside.arguments.size(), nullptr));
    for (const Changed changed : found)
      if (changed) return changed;
  }
  Pair pair{tables_, given, padded, {}, {}, {}};
  for (std::size_t i = 0; i < given.operands.size(); ++i) {
    const Value &a = sides_[0].values.at(given.operands[i]), &b = sides_[1].values.at(padded.operands[i]);
    const auto both = shapes(a.type, b.type);
    if (!both) return cause(Cause::is_unknown, given);
    pair.operands.push_back(*both);
    pair.known.push_back(a.all == b.all ? a.all : std::nullopt);
  }
  for (std::size_t i = 0; i < given.results.size(); ++i) {
    const auto both = shapes(given.results[i], padded.results[i]);
    if (!both) return cause(Cause::is_unknown, given);
    pair.results.push_back(*both);
  }
  if (!has_same_attributes(given, padded, rule->may_differ)) return cause(Cause::uses_size, given);
  return rule->holds(pair) ? nullptr : cause(Cause::mixes, given);
}

bool Comparison::has_same_attributes(const Operation& given, const Operation& padded,
                                     std::string_view may_differ) const {
  const auto all = [&](const Operation& operation) {
    auto found = tables_.attributes(operation);
    std::erase_if(found, [&](const auto& one) { return one.first == may_differ; });
    return found;
  };
  return all(given) == all(padded);
}

/// A function is compared once for each set of arguments that begin with the same elements.
Changes Comparison::function(const Operation& given, const Operation& padded, std::string_view attribute,
                             const Changes& arguments) {
  if (!has_same_attributes(given, padded, attribute))
    return Changes(given.results.size(), cause(Cause::uses_size, given));
  const Operation &a = sides_[0].function(tables_.text(tables_.needed(given, attribute))),
                  &b = sides_[1].function(tables_.text(tables_.needed(padded, attribute)));
  std::vector<bool> changed;
  for (const Changed one : arguments) changed.push_back(one != nullptr);
  const auto [found, is_new] = called_.try_emplace({{&a, &b}, std::move(changed)});
  if (is_new) found->second = block(body(a), body(b), arguments);
  if (found->second.size() != given.results.size()) throw OtherCode();
  return found->second;
}

/// What a loop carries is the same in every round, if it is so at first and a round leaves it so; and if as many rounds
/// are made.
Changes Comparison::loop(const Operation& given, const Operation& padded, Changes carried) {
  const Block &condition = given.regions.at(0).at(0), &body = given.regions.at(1).at(0);
  for (;;) {
    const Changes goes_on = block(condition, padded.regions.at(0).at(0), carried);
    Changes next = block(body, padded.regions.at(1).at(0), carried);
    if (goes_on.size() != 1 || next.size() != carried.size()) throw OtherCode();
    if (goes_on[0]) return Changes(carried.size(), goes_on[0]);
    bool is_stable = true;
    for (std::size_t i = 0; i < carried.size(); ++i) {
      if (carried[i] || !next[i]) continue;
      carried[i] = next[i];
      is_stable = false;
    }
    if (is_stable) return carried;
  }
}

Changes Comparison::branches(const Operation& given, const Operation& padded, Changed index) {
  Changes found(given.results.size(), index);
  for (std::size_t i = 0; i < given.regions.size(); ++i) {
    const Changes returned = block(given.regions[i].at(0), padded.regions[i].at(0), {});
    if (returned.size() != found.size()) throw OtherCode();
    for (std::size_t j = 0; j < found.size(); ++j)
      if (!found[j]) found[j] = returned[j];
  }
  return found;
}

std::string described(const Tables& tables, const Cause& cause) {
  const Operation& operation = *cause.operation;
  std::string text = "its operation " + std::string(tables.kind(operation.kind).base);
  if (const auto target = tables.attribute(operation, "call_target_name"))
    text += " of " + wire::shortened(tables.text(*target));
  if (const std::string place = tables.place_of(operation.location); !place.empty()) text += " at " + place;
  switch (cause.kind) {
    case Cause::mixes: return text + " mixes what is padded with the rest";
    case Cause::uses_size: return text + " computes with a size that is padded";
    case Cause::is_unknown: return text + " is not known to keep what is padded apart";
    case Cause::has_effect: return text + " does more than compute its results";
  }
  return text;
}

}  // namespace

std::optional<std::string> why_not_padded(std::span<const std::uint8_t> module, const wire::Path& where,
                                          std::span<const Shape> given, std::span<const Shape> padded) {
  Parts parts(module, where);
  Tables& tables = parts.tables();
  const Code code = parts.code();
  const Block without = Refiner(tables, code, module.size()).refined(given);
  Block with;
  try {
    with = Refiner(tables, code, module.size()).refined(padded);
  } catch (const RunError& error) {  // only these sizes are not those of the caller
    return std::string("the larger sizes do not fit: ") + error.what();
  }
  try {
    Comparison comparison(tables, without, with, module.size());
    const Changed changed = comparison.of_results();
    return changed ? std::optional(described(tables, *changed)) : std::nullopt;
  } catch (const Ended& ended) {
    return described(tables, ended.cause);
  } catch (const OtherCode&) {
    return "its code for the larger sizes has other operations";
  } catch (const std::out_of_range&) {
    refuse("one of its operations does not fit the sizes that it gets");
  }
}

}  // namespace jaxexp::runtime::refine

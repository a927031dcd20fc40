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
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "jaxexp/run_error.h"
#include "runtime/refine/code.h"
#include "runtime/refine/padding_rules.h"
#include "runtime/refine/parts.h"
#include "runtime/refine/range.h"
#include "runtime/refine/refiner.h"
#include "runtime/refine/tables.h"
#include "wire/base/digest.h"

namespace jaxexp::runtime::refine {
namespace {

/// What keeps a value from beginning with the value without padding.
struct Cause {
  enum Kind { mixes, uses_size, is_unknown, has_effect, may_not_end } kind;
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
    std::optional<Id> attribute = {};    // of constants
    std::optional<Integers> row = {};    // of constants, where all rows along the last dimension are the same integers
    std::optional<Range> range = {};     // of integers; of values that are no constants, without padding only
    const Operation* made_by = nullptr;  // without padding only
    bool is_constant = false;
  };

  /// A loop that makes a round for each number of an argument, beginning with `first`, as long as it is less than
  /// `end`.
  struct Count {
    std::size_t argument;
    std::int64_t first, end;
  };
  using Definitions = std::unordered_map<Id, const Operation*>;
  static constexpr Id none = UINT32_MAX;

  /// A round of such a loop, or a function that it calls: an array that it gets, and the number of the round.
  struct Round {
    const Definitions* made;
    Id array, counter;
  };

  struct Side {
    Side(Tables& tables, const Block& top) {
      for (const Operation& one : top.operations.front().regions.front().front().operations)
        if (!one.regions.empty() && tables.kind(one.kind).full_name() == "vhlo.func_v1")
          functions.emplace(tables.text(tables.needed(one, "sym_name")), &one);
    }
    const Operation& function(std::string_view name) const { return *functions.at(name); }

    std::unordered_map<std::string_view, const Operation*, wire::SeededHash> functions;
    std::unordered_map<Id, Value> values;
  };

  static const Block& body(const Operation& operation) { return operation.regions.at(0).at(0); }

  Changes block(const Block& given, const Block& padded, const Changes& arguments, const Ranges& ranges = {});
  Changes function(const Operation& given, const Operation& padded, std::string_view attribute,
                   const Changes& arguments);
  Changes operation(const Operation& given, const Operation& padded);
  Changes loop(const Operation& given, const Operation& padded, Changes carried);
  Definitions definitions(const Operation& operation);
  std::optional<Count> count(std::size_t side, const Operation& loop, const Definitions& made);
  bool is_left(Id value, const Round& round, const Shapes& array, std::int64_t end);
  Changes branches(const Operation& given, const Operation& padded, Changed index);
  Changed followed_rule(const Operation& given, const Operation& padded);
  Changes operands(const Operation& given, const Operation& padded);
  Changed compared(const Operation& user, Id given, Id padded);
  bool noted_constant(Side& side, const Operation& operation);
  Ranges ranges_of(const Operation& given) const;
  Ranges parts(const Value& value) const;
  const std::vector<Id>& returned(const Block& block) const;
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
  using Call = std::tuple<const Operation*, const Operation*, std::vector<bool>, Ranges>;
  struct Called {
    Changes changes;
    const Operation* endless;
  };
  std::map<Call, Called> called_;
  /// A loop in what was looked at that numbers may keep going forever.
  const Operation* endless_ = nullptr;
  unsigned depth_ = 0;
  std::uint64_t left_;  // operations that may still be looked at
};

/// What the end of a block returns, where its arguments are these.
Changes Comparison::block(const Block& given, const Block& padded, const Changes& arguments, const Ranges& ranges) {
  if (given.arguments.size() != arguments.size() || padded.arguments.size() != arguments.size()) throw OtherCode();
  if (++depth_ > max_depth) refuse("its code nests too deeply");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Id a = given.first_argument + static_cast<Id>(i), b = padded.first_argument + static_cast<Id>(i);
    sides_[0].values[a] = {given.arguments[i].type, b, arguments[i]};
    if (!ranges.empty()) sides_[0].values[a].range = ranges.at(i);
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
      Value& value = sides_[0].values[one] = {type, other, changes[i]};
      value.made_by = &*a;
      value.range = range_of(tables_, *a, ranges_of(*a));
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
  const Type& type = tables_.type(value.type);
  const Shape& shape = type.shape;
  if (kind.base == "constant") {
    value.attribute = tables_.needed(operation, "value");
    const auto numbers = tables_.integers(*value.attribute);
    const std::size_t length = shape.empty() ? 1 : static_cast<std::size_t>(shape.back());
    const bool has_rows = numbers && length > 0 && numbers->size() >= length;
    if (has_rows && std::equal(numbers->begin() + length, numbers->end(), numbers->begin())) {
      value.row.emplace(numbers->begin(), numbers->begin() + length);
      if (std::ranges::adjacent_find(*value.row, std::not_equal_to<>()) == value.row->end()) value.row->resize(1);
    }
  } else if ((kind.base == "broadcast_in_dim" || kind.base == "reshape") && operation.operands.size() == 1) {
    const auto operand = side.values.find(operation.operands[0]);
    if (operand == side.values.end() || !operand->second.row) return false;
    value.row = operand->second.row;
    if (value.row->size() > 1) {
      if (kind.base == "reshape") return false;
      const Integers dimensions = tables_.needed_integers(operation, "broadcast_dimensions");
      if (dimensions.empty() || dimensions.back() + 1 != static_cast<std::int64_t>(shape.size())) return false;
    }
  } else {
    return false;
  }
  if (value.row) value.range = range_of(*value.row, tables_.element(type.element));
  side.values[operation.first_result] = std::move(value);
  return true;
}

/// Of the operands.
Ranges Comparison::ranges_of(const Operation& given) const {
  Ranges found;
  for (const Id operand : given.operands) found.push_back(sides_[0].values.at(operand).range);
  return found;
}

/// Of what a value is concatenated of, if these are one element long each along the last dimension.
Ranges Comparison::parts(const Value& value) const {
  if (!value.made_by || tables_.kind(value.made_by->kind).full_name() != "vhlo.concatenate_v1") return {};
  const auto dimension = static_cast<std::size_t>(tables_.integer(tables_.needed(*value.made_by, "dimension")));
  const auto is_one_long = [&](Id operand) {
    const Shape& shape = tables_.type(sides_[0].values.at(operand).type).shape;
    return shape.size() == dimension + 1 && shape.back() == 1;
  };
  return std::ranges::all_of(value.made_by->operands, is_one_long) ? ranges_of(*value.made_by) : Ranges();
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
  const bool is_same = a.row ? a.row == b.row && fits(a.type, b.type) : a.attribute && a.attribute == b.attribute;
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
  if (kind.is_vhlo && kind.base == "select" && !changes.at(0))
    if (const auto range = sides_[0].values.at(given.operands[0]).range; range && range->is_one())
      return {changes.at(range->least != 0 ? 1 : 2)};
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
  Pair pair{tables_, given, padded, {}, {}, ranges_of(given), {}};
  for (std::size_t i = 0; i < given.operands.size(); ++i) {
    const Value &a = sides_[0].values.at(given.operands[i]), &b = sides_[1].values.at(padded.operands[i]);
    const auto both = shapes(a.type, b.type);
    if (!both) return cause(Cause::is_unknown, given);
    pair.operands.push_back(*both);
    pair.parts.push_back(parts(a));
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

/// A function is compared once for each set of arguments that begin with the same elements, and of their ranges.
Changes Comparison::function(const Operation& given, const Operation& padded, std::string_view attribute,
                             const Changes& arguments) {
  if (!has_same_attributes(given, padded, attribute))
    return Changes(given.results.size(), cause(Cause::uses_size, given));
  const Operation &a = sides_[0].function(tables_.text(tables_.needed(given, attribute))),
                  &b = sides_[1].function(tables_.text(tables_.needed(padded, attribute)));
  std::vector<bool> changed;
  for (const Changed one : arguments) changed.push_back(one != nullptr);
  const Ranges ranges = ranges_of(given);
  const auto [found, is_new] = called_.try_emplace({&a, &b, std::move(changed), ranges});
  if (is_new) {
    const Operation* const before = std::exchange(endless_, nullptr);
    Changes changes = block(body(a), body(b), arguments, ranges);
    found->second = {std::move(changes), std::exchange(endless_, before)};
  }
  if (found->second.endless) endless_ = found->second.endless;
  if (found->second.changes.size() != given.results.size()) throw OtherCode();
  return found->second.changes;
}

/// What a loop carries is the same in every round, if it is so at first and a round leaves it so; and if as many rounds
/// are made. Where a loop counts to a size, more are made, which have to leave what is kept, and to end, whatever is
/// added.
Changes Comparison::loop(const Operation& given, const Operation& padded, Changes carried) {
  const Block &condition = given.regions.at(0).at(0), &round = given.regions.at(1).at(0);
  const Block &condition_when_padded = padded.regions.at(0).at(0), &round_when_padded = padded.regions.at(1).at(0);
  const Definitions made[] = {definitions(given), definitions(padded)};
  const auto count = this->count(0, given, made[0]), count_when_padded = this->count(1, padded, made[1]);
  const bool counts = count && count_when_padded && count->argument == count_when_padded->argument &&
                      count->first == count_when_padded->first && count->end <= count_when_padded->end;
  const Operation* const before = std::exchange(endless_, count_when_padded ? nullptr : &given);
  const auto endless = [&] { return std::exchange(endless_, endless_ ? endless_ : before); };
  Ranges ranges(carried.size());
  if (counts) ranges.at(count->argument) = Range{count->first, std::max(count->first, count->end - 1)};
  for (;;) {
    const Changes goes_on = block(condition, condition_when_padded, carried);
    const Changes next = block(round, round_when_padded, carried, ranges);
    if (goes_on.size() != 1 || next.size() != carried.size()) throw OtherCode();
    if (goes_on[0] && (!counts || carried[count->argument])) {
      // It runs, whoever uses its results.
      if (!count_when_padded || counts) throw Ended{{Cause::may_not_end, &given}};
      endless();
      return Changes(carried.size(), goes_on[0]);
    }
    bool is_stable = true;
    for (std::size_t i = 0; i < carried.size(); ++i) {
      if (carried[i] || !next[i]) continue;
      carried[i] = next[i];
      is_stable = false;
    }
    if (!is_stable) continue;
    const Operation* const one = endless();
    if (goes_on[0] && one) return Changes(carried.size(), cause(Cause::may_not_end, *one));
    for (std::size_t i = 0; goes_on[0] && i < carried.size(); ++i) {
      const Round more{&made[1], round_when_padded.first_argument + static_cast<Id>(i),
                       round_when_padded.first_argument + static_cast<Id>(count->argument)};
      const auto array = shapes(given.results.at(i), padded.results.at(i));
      const Id left = returned(round_when_padded).at(i);
      if (!carried[i] && left != more.array && !(array && is_left(left, more, *array, count->end)))
        carried[i] = goes_on[0];
    }
    return carried;
  }
}

/// What a block returns at its end.
const std::vector<Id>& Comparison::returned(const Block& block) const {
  if (block.operations.empty() || tables_.kind(block.operations.back().kind).full_name() != "vhlo.return_v1")
    throw OtherCode();
  return block.operations.back().operands;
}

/// What makes the values in the regions of an operation.
Comparison::Definitions Comparison::definitions(const Operation& operation) {
  Definitions made;
  for (const Region& region : operation.regions)
    for (const Operation& one : region.at(0).operations) {
      spend();
      for (std::size_t i = 0; i < one.results.size(); ++i) made.emplace(one.first_result + static_cast<Id>(i), &one);
    }
  return made;
}

/// How a loop counts. Nothing where its condition depends on anything else.
std::optional<Comparison::Count> Comparison::count(std::size_t side, const Operation& loop, const Definitions& made) {
  const Block &condition = loop.regions.at(0).at(0), &body = loop.regions.at(1).at(0);
  std::size_t constants = 0;
  for (const Operation& one : condition.operations) constants += noted_constant(sides_[side], one);
  for (const Operation& one : body.operations) noted_constant(sides_[side], one);
  const auto number = [&](Id value) -> std::optional<std::int64_t> {
    const auto found = sides_[side].values.find(value);
    if (found == sides_[side].values.end() || !found->second.is_constant) return std::nullopt;
    const auto& range = found->second.range;
    return range && range->is_one() ? std::optional(range->least) : std::nullopt;
  };
  const auto operation = [&](Id value, std::string_view base) -> const Operation* {
    const auto found = made.find(value);
    const bool is_it = found != made.end() && tables_.kind(found->second->kind).is_vhlo &&
                       tables_.kind(found->second->kind).base == base && found->second->operands.size() == 2;
    return is_it ? found->second : nullptr;
  };
  const Operation* const compare = operation(returned(condition).at(0), "compare");
  if (!compare || condition.operations.size() != constants + 2 ||
      tables_.number(tables_.needed(*compare, "compare_type")) != vhlo::signed_integers ||
      tables_.number(tables_.needed(*compare, "comparison_direction")) != std::uint64_t(Direction::less))
    return std::nullopt;
  const std::size_t argument = compare->operands[0] - condition.first_argument;
  if (argument >= condition.arguments.size()) return std::nullopt;
  const auto first = number(loop.operands.at(argument)), end = number(compare->operands[1]);
  const Operation* const add = operation(returned(body).at(argument), "add");
  if (!first || !end || !add || add->operands[0] != body.first_argument + argument || number(add->operands[1]) != 1)
    return std::nullopt;
  return Count{argument, *first, *end};
}

/// Whether what a round makes of an array begins as the array does, which is kept before `end`: the round writes
/// behind that.
bool Comparison::is_left(Id value, const Round& round, const Shapes& array, std::int64_t end) {
  const auto found = round.made->find(value);
  if (found == round.made->end() || !tables_.kind(found->second->kind).is_vhlo) return false;
  const Operation& operation = *found->second;
  const std::string_view base = tables_.kind(operation.kind).base;
  if (base == "call") {
    const Operation& callee = sides_[1].function(tables_.text(tables_.needed(operation, "callee")));
    const auto inside = [&](Id outside) {
      const auto at = std::ranges::find(operation.operands, outside);
      return at == operation.operands.end()
                 ? none
                 : body(callee).first_argument + static_cast<Id>(at - operation.operands.begin());
    };
    const Definitions made = definitions(callee);
    return is_left(returned(body(callee)).at(value - operation.first_result),
                   {&made, inside(round.array), inside(round.counter)}, array, end);
  }
  if (base != "dynamic_update_slice" || operation.operands.at(0) != round.array) return false;
  const Shape& written = tables_.type(sides_[1].values.at(operation.operands.at(1)).type).shape;
  for (std::size_t d = 0; d < array.rank(); ++d)  // out of bounds, it would begin at the last place
    if (operation.operands.at(d + 2) == round.counter && array.given[d] <= end &&
        array.given[d] <= array.padded[d] - written.at(d))
      return true;
  return false;
}

Changes Comparison::branches(const Operation& given, const Operation& padded, Changed index) {
  Changes found(given.results.size(), index);
  const Operation* const before = std::exchange(endless_, nullptr);
  for (std::size_t i = 0; i < given.regions.size(); ++i) {
    const Changes returned = block(given.regions[i].at(0), padded.regions[i].at(0), {});
    if (returned.size() != found.size()) throw OtherCode();
    for (std::size_t j = 0; j < found.size(); ++j)
      if (!found[j]) found[j] = returned[j];
  }
  if (index && endless_) throw Ended{{Cause::may_not_end, endless_}};  // in a branch that is not taken without padding
  if (!endless_) endless_ = before;
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
    case Cause::may_not_end: return text + " may never end for what is padded";
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

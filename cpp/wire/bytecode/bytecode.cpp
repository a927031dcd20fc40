#include "wire/bytecode/bytecode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

#include "wire/base/flat_map.h"
#include "wire/bytecode/cursor.h"
#include "wire/bytecode/operations.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::wire {
namespace {

// Calls and the regions around them: XLA compiles 180 of them inside of one another, and crashes at 190.
constexpr unsigned max_depth = 160;

/// Compilers follow calls without an end of their own, on the stack of a thread. Functions have the hashes of their
/// names, which are not 0.
class CallGraph {
 public:
  std::size_t size() const { return functions_.size(); }
  /// What is called from now on is called by this function.
  void begin(std::uint64_t function) {
    functions_.push_back({calls_.size()});
    numbers_.insert(function).first = functions_.size();
  }

  /// `depth` is the number of regions around the call, in the function that began. `in_body` says whether one of them
  /// combines or compares elements (wire/bytecode/bytecode.h, `in_bodies`).
  void call(std::uint64_t function, unsigned depth, bool in_body) {
    if (!functions_.empty()) calls_.push_back({function, depth, in_body});
  }

  /// Throws Error if a function calls itself, also by others, or if calls nest too deeply.
  /// Depth first, without recursion.
  void check(const Cursor& at) {
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

  /// Whether each function, in the order in which they began, is called in a body, or by one that is.
  std::vector<bool> called_in_bodies() {
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

  std::span<const Call> calls_of(std::size_t function) const {
    const std::size_t begin = functions_[function].first_call;
    const std::size_t end = function + 1 < functions_.size() ? functions_[function + 1].first_call : calls_.size();
    return std::span(calls_).subspan(begin, end - begin);
  }

  FlatMap<std::size_t> numbers_;  // by names, counted from 1
  std::vector<Function> functions_;
  std::vector<Call> calls_;
};

/// What the types of an operation's values have to be, where StableHLO does not say it, or XLA does not compare it.
enum class TypeRule : std::uint8_t { none, cast, bits, expansion, random_bits, reduction, remainder };

constexpr auto rules = std::to_array<std::pair<std::string_view, TypeRule>>({
    {"all_reduce", TypeRule::reduction},
    {"bitcast_convert", TypeRule::bits},
    {"builtin.unrealized_conversion_cast", TypeRule::cast},
    {"collective_reduce", TypeRule::reduction},
    {"reduce", TypeRule::reduction},
    {"reduce_scatter", TypeRule::reduction},
    {"reduce_window", TypeRule::reduction},
    {"remainder", TypeRule::remainder},
    {"dynamic_broadcast_in_dim", TypeRule::expansion},
    {"rng_bit_generator", TypeRule::random_bits},
    {"scatter", TypeRule::reduction},
    {"select_and_scatter", TypeRule::reduction},
    {"stablehlo.dynamic_reduce_window", TypeRule::reduction},
    {"stablehlo.dynamic_rng_bit_generator", TypeRule::random_bits},
});

/// Whether the bits of an array's elements are those of the result's elements, all in their places.
bool have_equal_bits(const AttributesAndTypes& tables, std::uint32_t operand, std::uint32_t result) {
  const std::int32_t before = tables.bits(tables.attributes() + operand);
  const std::int32_t after = tables.bits(tables.attributes() + result);
  if (before <= 0 || after <= 0 || std::max(before, after) % std::min(before, after) != 0) return false;
  const auto [narrow, wide] = before < after ? std::pair(operand, result) : std::pair(result, operand);
  auto parts = tables.sizes(narrow);
  if (before != after) {
    if (parts.empty() || parts.back() != std::max(before, after) / std::min(before, after)) return false;
    parts = parts.first(parts.size() - 1);
  }
  return std::ranges::equal(parts, tables.sizes(wide));
}

constexpr unsigned unknown = AttributesAndTypes::unknown_element, complex = AttributesAndTypes::complex_numbers;

bool is_complex(unsigned element) { return complex <= element && element < unknown; }

bool is_unsigned(unsigned element) {
  constexpr unsigned first = 15, last = 19, of_two_bits = 32;
  return (first <= element && element <= last) || element == of_two_bits;
}

/// Whether arrays have the elements of the results. First are those that are reduced, last initial values or updates.
bool keep_elements(const AttributesAndTypes& tables, std::span<const std::uint32_t> operands,
                   std::span<const std::uint32_t> results) {
  const auto are_equal = [&](std::span<const std::uint32_t> some) {
    return std::ranges::equal(some, results, [&](std::uint32_t before, std::uint32_t after) {
      return tables.element(before) == tables.element(after) && tables.element(after) != unknown;
    });
  };
  const std::size_t count = results.size();
  return count <= operands.size() && are_equal(operands.first(count)) && are_equal(operands.last(count));
}

/// Of an operation: without the dialect if that is VHLO.
TypeRule type_rule(std::string_view name) {
  const auto* const found =
      std::ranges::find(rules, name.substr(0, name.rfind("_v")), [](auto& rule) { return rule.first; });
  return found == rules.end() ? TypeRule::none : found->second;
}

/// Whether a cast is one from a dialect to another, which changes no value. MLIR's passes trust that.
bool is_cast(const AttributesAndTypes& tables, std::uint32_t operand, std::uint32_t result) {
  if (tables.value_kind(operand) != tables.value_kind(result)) return false;
  if (tables.value_kind(operand) != 'x') return true;
  const unsigned element = tables.element(operand);
  return element != unknown && element == tables.element(result) &&
         std::ranges::equal(tables.sizes(operand), tables.sizes(result));
}

/// Whether XLA may compute arrays of other types than an operation says, or its compiler may crash. JAX writes no such
/// operation. The attributes are in the order of the table in operations.cpp.
bool is_unchecked(const AttributesAndTypes& tables, TypeRule rule, std::span<const std::uint32_t> attributes,
                  std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  const auto says = [&](std::uint32_t attribute) { return tables.numbers(attribute).count > 0; };
  switch (rule) {
    case TypeRule::bits: return !have_equal_bits(tables, operands.front(), results.front());
    case TypeRule::expansion: return std::ranges::any_of(attributes.subspan(1), says);
    case TypeRule::random_bits:
      return operands.front() != results.front() || !is_unsigned(tables.element(results.back()));
    case TypeRule::reduction: return !keep_elements(tables, operands, results);
    case TypeRule::remainder: return is_complex(tables.element(results.front()));
    default: return false;
  }
}

/// The same for a custom call, which becomes an operation when sizes are known.
bool is_unchecked_call(const AttributesAndTypes& tables, std::string_view target,
                       std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  const TypeRule rule = target.starts_with("stablehlo.") ? type_rule(target) : TypeRule::none;
  if (rule == TypeRule::none) return false;
  const auto is_array = [&](std::uint32_t type) { return tables.value_kind(type) == 'x'; };
  const std::size_t arrays = rule == TypeRule::reduction ? 2 * results.size() : 1;  // behind them are sizes
  return results.empty() || operands.size() < arrays || !std::ranges::all_of(operands, is_array) ||
         !std::ranges::all_of(results, is_array) || is_unchecked(tables, rule, {}, operands.first(arrays), results);
}

/// One operation with its regions. A letter stands for a value: a tensor (x), a predicate, which is one truth value
/// (i), a token (k), a tuple (p), a future (f), any of these or a buffer (v). Behind a letter, "*" says that there is
/// any number of them. Behind several letters of an operation, "+" says that there are equally many of each, and at
/// least one; "#" the same, but perhaps none. Where these may be any values, they are of one kind each time: what a
/// loop begins with, is given and returns.
class Values {
 public:
  explicit Values(const AttributesAndTypes& tables) : tables_(&tables) {}

  /// Whether a pattern has values of these types before its ">", and of those behind it.
  bool fit(std::string_view pattern, std::span<const std::uint32_t> taken, std::span<const std::uint32_t> given) {
    const std::size_t middle = pattern.find('>');
    return fit(pattern.substr(0, middle), taken) && fit(pattern.substr(middle + 1), given);
  }

 private:
  bool fit(std::string_view pattern, std::span<const std::uint32_t> types) {
    const auto has = [&](char sign) { return static_cast<std::size_t>(std::ranges::count(pattern, sign)); };
    const std::size_t any = has('*'), equal = has('+') + has('#'), single = pattern.size() - 2 * (any + equal);
    if (types.size() < single || (any + equal == 0 && types.size() > single)) return false;
    const std::size_t more = types.size() - single;
    if (equal > 0) {
      const std::size_t each = more / equal;
      if (more % equal != 0 || each != count_.value_or(each) || (each == 0 && has('+') > 0)) return false;
      count_ = each;
    }
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const char letter = pattern[i], sign = i + 1 < pattern.size() ? pattern[i + 1] : ' ';
      const bool is_equal = sign == '+' || sign == '#', is_group = is_equal || sign == '*';
      if (is_group) ++i;
      const auto group = types.first(is_equal ? *count_ : is_group ? more : 1);
      types = types.subspan(group.size());
      if (!std::ranges::all_of(group, [&](std::uint32_t type) { return fits(letter, type); })) return false;
      if (!is_equal || letter != 'v') continue;
      if (kinds_.empty())
        for (const std::uint32_t type : group) kinds_.push_back(tables_->value_kind(type));
      else if (!std::ranges::equal(group, kinds_, {}, [&](std::uint32_t type) { return tables_->value_kind(type); }))
        return false;
    }
    return true;
  }

  bool fits(char letter, std::uint32_t type) const {
    const char kind = tables_->value_kind(type);
    if (letter == 'i') return kind == 'x' && tables_->is_predicate(type);
    return letter == 'v' ? kind != AttributesAndTypes::no_value : kind == letter;
  }

  const AttributesAndTypes* tables_;
  std::optional<std::size_t> count_;  // what "+" and "#" stand for
  std::vector<char> kinds_;           // of the values of the first group of any
};

// The code of a module in MLIR bytecode, against its tables.

using namespace parts_of_operation;

/// How deep regions nest: a level for each loop or branch inside another.
constexpr unsigned max_region_depth = 256;

constexpr std::string_view vhlo = "vhlo.";

/// A kind of operation.
struct Operation {
  bool registered;   // whether its properties are in the section for that
  bool is_exported;  // whether exports may have it
  bool is_vhlo, is_module, is_function, is_mesh, is_return, is_custom_call, is_composite, is_comparison, is_sort;
  bool has_body;  // it combines or compares elements by its regions
  TypeRule rule;
  bool is_repeatable;                // whether its results are a function of its operands
  std::optional<std::size_t> calls;  // which attribute has the functions that it calls
  const KnownOperation* known;
  std::uint64_t count = 0;
  bool is_unchecked = false;  // at some place
};

Operation operation_of(std::string_view name, bool registered) {
  const bool is_vhlo = name.starts_with(vhlo);
  const bool is_exported =
      is_vhlo || name.starts_with("sdy.") || name == "builtin.module" || name == "builtin.unrealized_conversion_cast";
  if (is_vhlo) name.remove_prefix(vhlo.size());
  const bool is_custom_call = is_vhlo && name.starts_with("custom_call");
  const bool is_composite = is_vhlo && name.starts_with("composite");
  std::optional<std::size_t> calls;
  if (is_custom_call)
    calls = 3;
  else if (is_composite)
    calls = 1;
  else if (is_vhlo && name == "call_v1")
    calls = 0;
  constexpr std::string_view others[] = {"infeed_v", "recv_v", "rng_v"};
  const KnownOperation* known = known_operation(name);
  return {
      .registered = registered,
      .is_exported = is_exported,
      .is_vhlo = is_vhlo,
      .is_module = name == "builtin.module",
      .is_function = is_vhlo && name == "func_v1",
      .is_mesh = name == "sdy.mesh",
      .is_return = name == (is_vhlo ? "return_v1" : "sdy.return"),
      .is_custom_call = is_custom_call,
      .is_composite = is_composite,
      .is_comparison = is_vhlo && name == "compare_v1",
      .is_sort = is_vhlo && name == "sort_v1",
      .has_body = is_vhlo && known && known->regions.starts_with('x'),
      .rule = type_rule(name),
      .is_repeatable = known && !calls && std::ranges::none_of(others, [&](auto of) { return name.starts_with(of); }),
      .calls = calls,
      .known = known};
}

/// Whether truth values become other numbers by their bits, or come of them. JAX does not write that, and compilers
/// have no one form of their bits.
bool casts_truth_values(const AttributesAndTypes& tables, const Operation& kind,
                        std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  return kind.rule == TypeRule::bits &&
         tables.holds_truth_values(operands.front()) != tables.holds_truth_values(results.front());
}

/// Whether integers are compared, and only their type says whether they have signs.
bool leaves_sign_open(const AttributesAndTypes& tables, const Operation& kind,
                      std::span<const std::uint32_t> attributes, std::span<const std::uint32_t> operands) {
  return kind.is_comparison && tables.choice(attributes.front()) == 0 && tables.holds_integers(operands.front());
}

/// Whether an operation has other values than numbers.
bool has_arrays(const AttributesAndTypes& tables, std::span<const std::uint32_t> operands,
                std::span<const std::uint32_t> results) {
  const auto is_number = [&](std::uint32_t type) { return tables.rank(type) == 0; };
  return !std::ranges::all_of(operands, is_number) || !std::ranges::all_of(results, is_number);
}

/// An operation of a comparison. XLA sorts outside of an array if two comparisons of the same elements differ, and has
/// the arrays of a comparison on its stack.
void check_comparison(const Cursor& at, const AttributesAndTypes& tables, const Operation& kind,
                      std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  if (!kind.is_repeatable) at.refuse("a sort that may compare the same elements with different results");
  if (has_arrays(tables, operands, results)) at.refuse("a sort that compares by more than numbers");
}

/// Whether lengths are those of an FFT. XLA takes them for what it reads and writes, and StableHLO compares them with
/// the types for some kinds only. Half of a spectrum is compared when its size is known.
bool are_last_sizes(const AttributesAndTypes::Numbers& lengths, std::uint64_t kind,
                    std::span<const std::int64_t> operand, std::span<const std::int64_t> result) {
  constexpr std::uint64_t inverse_of_real = 3;
  const auto count = static_cast<std::size_t>(lengths.count);
  if (lengths.listed.empty() || count > operand.size() || operand.size() != result.size()) return false;
  for (std::size_t i = 1; i <= count; ++i) {
    const std::int64_t length = lengths.listed.size() < count ? lengths.listed[0] : lengths.listed[count - i];
    const std::int64_t before = operand[operand.size() - i], after = result[result.size() - i];
    const bool is_half = i == 1 && kind == inverse_of_real;
    if (after < 0 || (before < 0 && !is_half) || length != std::max(before, after)) return false;
  }
  return true;
}

/// Whether custom calls with a target only say something of their first operand.
bool is_hint(std::string_view target) {
  constexpr std::string_view hints[] = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
                                        "annotate_device_placement"};
  return std::ranges::find(hints, target) != std::end(hints);
}

/// Whether a custom call has the values of one that only says something: an array, behind it the sizes of the result
/// where these are open, and a result. XLA ends the process at others.
bool may_be_hint(const AttributesAndTypes& tables, std::span<const std::uint32_t> operands,
                 std::span<const std::uint32_t> results) {
  if (operands.empty() || results.size() != 1) return false;
  if (operands.size() == 1) return true;
  return tables.value_kind(results.front()) == 'x' &&
         std::ranges::count(tables.sizes(results.front()), AttributesAndTypes::dynamic_size) > 0;
}

/// The attributes of VHLO's operations, against what each kind of operation has.
class AttributeCheck {
 public:
  AttributeCheck(const Names& names, const AttributesAndTypes& tables) : names_(names), tables_(tables) {}

  /// The numbers of an operation's attributes, in the order in which they are known.
  using Found = std::vector<std::uint32_t>;

  /// Properties of VHLO's operations are their attributes, one after the other.
  /// Returns their weight.
  std::uint64_t properties(const Operation& kind, Cursor given, Found& found) const {
    if (!kind.is_vhlo || !kind.known) return given.left();
    std::uint64_t weight = 0;
    for (const char letter : kind.known->kinds) {
      const std::uint64_t one = attribute(given);
      check(given, *kind.known, letter, one);
      weight += tables_.weight(one);
      found.push_back(static_cast<std::uint32_t>(one));
    }
    if (!given.at_end()) given.refuse("more attributes than an operation has");
    return weight;
  }

  /// Whether an entry of a dictionary has the name of a property, which MLIR lets it replace.
  bool replaces_property(const KnownOperation& known, std::uint64_t dictionary) const {
    const auto entries = tables_.elements(dictionary);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
      if (const std::uint32_t string = tables_.string(entries[i]); string != AttributesAndTypes::no_string)
        if (known.place_of(names_.strings[string])) return true;
    return false;
  }

  /// Refuses a call that is a hint, and has operands or results of another one.
  void refuse_hint(const Cursor& at, std::uint32_t call) const {
    const std::string_view target = names_.strings[call];
    if (is_hint(target)) at.refuse("a custom call " + std::string(target) + " with operands or results of another one");
  }

  /// Refuses what lacks an attribute that StableHLO reads where it computes shapes.
  void refuse_lacking(const Cursor& at, const Operation& kind, const Found& attributes, std::uint32_t target,
                      std::optional<std::uint64_t> dictionary) const {
    constexpr unsigned integer = 9;
    constexpr std::string_view size = "k", message = "error_message";
    if (kind.known && kind.is_composite && is_text(tables_.string(attributes[2]), "chlo.top_k")) {
      const auto found = values(attributes[0], {&size, 1}).front();
      if (!found || tables_.vhlo_kind(*found) != integer) at.refuse("a composite chlo.top_k without a number as its k");
    }
    if (!is_text(target, "shape_assertion")) return;
    const auto found = values(dictionary, {&message, 1}).front();
    if (!found || tables_.string(*found) == AttributesAndTypes::no_string)
      at.refuse("a custom call shape_assertion without a text as its error_message");
    if (!is_template(names_.strings[tables_.string(*found)]))
      at.refuse("a custom call shape_assertion whose error_message has more than numbers in braces");
  }

  /// Whether braces in a text have numbers in them, or stand for themselves, and nothing else. LLVM puts sizes in their
  /// places, and would make them as wide as a text says.
  static bool is_template(std::string_view text) {
    for (std::size_t at = text.find('{'); at != text.npos; at = text.find('{', at)) {
      const std::size_t end = text.find_first_not_of("0123456789", ++at);
      if (end == text.npos || end - at > 9 || (end == at ? text[at] != '{' : text[end] != '}')) return false;
      at = end + 1;
    }
    return true;
  }

  /// Before there were properties, attributes were in a dictionary, which equal operations share.
  void dictionary(const Cursor& at, const KnownOperation& known, std::optional<std::uint64_t> given, Found& found) {
    const std::uint64_t place = static_cast<std::uint64_t>(number_of(known)) << 32;
    const auto [begin, is_new] = dictionaries_.insert(place | (given ? *given + 1 : 0));
    if (is_new) {
      begin = in_dictionaries_.size();
      const auto wanted = known.attribute_names();
      const auto values = this->values(given, wanted);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (!values[i]) at.refuse("an operation " + std::string(known.name) + " without " + std::string(wanted[i]));
        check(at, known, known.kinds[i], *values[i]);
        in_dictionaries_.push_back(*values[i]);
      }
    }
    const auto first = in_dictionaries_.begin() + static_cast<std::ptrdiff_t>(begin);
    found.assign(first, first + static_cast<std::ptrdiff_t>(known.kinds.size()));
  }

  /// Whether the numbers of dimensions in attributes fit the types of an operation's values.
  bool fit(const KnownOperation& known, const Found& attributes, std::span<const std::uint32_t> operands,
           std::span<const std::uint32_t> results) const {
    std::map<char, std::vector<std::int64_t>> dimensions;  // by letters
    for (std::size_t i = 0; i < known.dimensions.size(); ++i) {
      const char letter = known.dimensions[i];
      if (letter == '.') continue;
      if (letter == 'e') {
        if (!compares(tables_.choice(attributes[i]), tables_.holds_integers(operands.front()))) return false;
        continue;
      }
      const std::int64_t rank = tables_.rank(one_of(letter, operands, results));
      const auto numbers = tables_.numbers(attributes[i]);
      const auto is_below_rank = [&](std::int64_t least) {
        return std::ranges::all_of(numbers.listed, [&](std::int64_t n) { return least <= n && n < rank; });
      };
      switch (letter) {
        case 'w':
        case 'y':
        case 'p':
        case 'q': {
          const std::int64_t places = letter == 'w' || letter == 'p' ? rank : rank - 2;
          if (numbers.count != places * (letter == 'p' || letter == 'q' ? 2 : 1)) return false;
          if (!std::ranges::all_of(numbers.listed, is_small)) return false;
          break;
        }
        case 'n':
          if (numbers.count == 0) return false;
          break;
        case 'l':
          if (!are_last_sizes(numbers, tables_.choice(attributes.back()), tables_.sizes(operands.front()),
                              tables_.sizes(results.front())))
            return false;
          break;
        default:
          if (numbers.count != static_cast<std::int64_t>(numbers.listed.size())) return false;
          if (letter == 'm' && numbers.count != tables_.rank(operands.front())) return false;
          if (letter == 'v' && numbers.listed.front() == rank) break;
          if (!is_below_rank(letter == 'd' ? -rank : 0)) return false;
          if (letter != 'v' && letter != 'd') std::ranges::copy(numbers.listed, std::back_inserter(dimensions[letter]));
      }
    }
    for (auto& [letter, chosen] : dimensions) {
      const bool are_all = letter >= 'A' && letter <= 'Z';
      std::ranges::sort(chosen);
      if (std::ranges::adjacent_find(chosen) != chosen.end()) return false;
      if (are_all && static_cast<std::int64_t>(chosen.size()) != tables_.rank(one_of(letter, operands, results)))
        return false;
    }
    return true;
  }

  /// What a custom call calls, as the number of a string; `no_string` for those whose attributes were not checked, for
  /// which it is not known where that stands.
  std::uint32_t target(const Operation& kind, std::optional<Cursor> own, std::optional<std::uint64_t> dictionary) {
    if (kind.known && own) {
      attribute(*own);  // what stands in front of it in alphabetical order
      attribute(*own);
      return tables_.string(attribute(*own));
    }
    if (!kind.known || !dictionary) return AttributesAndTypes::no_string;
    const auto [found, is_new] = targets_.insert(*dictionary + 1);
    if (is_new) {
      constexpr std::string_view name = "call_target_name";
      const auto value = values(dictionary, {&name, 1}).front();
      found = value ? tables_.string(*value) : AttributesAndTypes::no_string;
    }
    return found;
  }

 private:
  std::uint64_t attribute(Cursor& at) const { return at.index(tables_.attributes(), "attributes"); }

  bool is_text(std::uint32_t string, std::string_view text) const {
    return string != AttributesAndTypes::no_string && names_.strings[string] == text;
  }

  /// The values in a dictionary that have these names, the first of each: one pass, however many entries it has.
  std::vector<std::optional<std::uint32_t>> values(std::optional<std::uint64_t> dictionary,
                                                   std::span<const std::string_view> names) const {
    std::vector<std::optional<std::uint32_t>> found(names.size());
    const auto entries = dictionary ? tables_.elements(*dictionary) : std::span<const std::uint32_t>();
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const std::uint32_t string = tables_.string(entries[i]);
      if (string == AttributesAndTypes::no_string) continue;
      const auto name = std::ranges::find(names, names_.strings[string]);
      if (name == names.end()) continue;
      auto& value = found[static_cast<std::size_t>(name - names.begin())];
      if (!value) value = entries[i + 1];
    }
    return found;
  }

  /// Whether a number can be a size or a distance in an array. XLA adds and multiplies them, and larger ones overflow.
  static bool is_small(std::int64_t number) {
    return -AttributesAndTypes::max_elements <= number && number <= AttributesAndTypes::max_elements;
  }

  /// Whether elements are compared as what they are. JAX ends the process where it finds a size by another comparison.
  static bool compares(std::uint64_t how, bool integers) {
    constexpr std::uint64_t as_they_are = 0, as_signed_integers = 3, as_unsigned_integers = 4;
    return how == as_they_are || (how == as_signed_integers || how == as_unsigned_integers) == integers;
  }

  /// The type of the value whose dimensions a letter stands for.
  static std::uint32_t one_of(char letter, std::span<const std::uint32_t> operands,
                              std::span<const std::uint32_t> results) {
    switch (letter) {
      case 'm':
      case 'r':
      case 'R': return results.front();
      case 'b':
      case 'B':
      case 'v': return operands[operands.size() / 2];
      case 'c': return operands.back();
      default: return operands.front();
    }
  }

  void check(const Cursor& at, const KnownOperation& known, char letter, std::uint64_t attribute) const {
    if (!is_kind(letter, tables_.vhlo_kind(attribute)) || !holds(letter, attribute))
      at.refuse("an operation " + std::string(known.name) + " with attributes of another one");
  }

  /// Whether what is in an attribute of the kind that a letter asks for is so, too.
  bool holds(char letter, std::uint64_t attribute) const {
    constexpr unsigned type = 17, mode_of_accuracy = 19;
    switch (letter) {
      case 'D': return tables_.holds_dictionaries_alone(attribute);
      case 'i': return tables_.integer_bits(attribute) <= 64;
      case 'I': return tables_.vhlo_kind(attribute) == type || tables_.integer_bits(attribute) <= 64;
      case 't': return tables_.integer_bits(attribute) == 64;
      case 'u': return tables_.vhlo_kind(tables_.elements(attribute).front()) == mode_of_accuracy;
      case 'U': return tables_.is_function_type(attribute);
      case 'w': return tables_.integer_bits(attribute) == 1;
      default: return true;
    }
  }

  const Names& names_;
  const AttributesAndTypes& tables_;
  /// Dictionaries that were checked, with the operations that they belong to, and where their values are.
  FlatMap<std::size_t> dictionaries_;
  Found in_dictionaries_;
  FlatMap<std::uint32_t> targets_;  // of custom calls, by their dictionaries
};

/// The custom calls of a module.
class Calls {
 public:
  void note(std::uint32_t target) {
    if (target == AttributesAndTypes::no_string)
      are_known_ = false;
    else
      targets_.push_back(target);
  }

  /// How many there are of each target; nothing where a target is not known.
  std::optional<std::map<std::string_view, std::uint64_t>> counted(const Names& names) const {
    if (!are_known_) return std::nullopt;
    // Sorted by number first: comparing a long target for each of its calls would take long.
    std::vector<std::uint32_t> targets = targets_;
    std::ranges::sort(targets);
    std::map<std::string_view, std::uint64_t> found;
    for (std::size_t i = 0, next = 0; i < targets.size(); i = next) {
      while (next < targets.size() && targets[next] == targets[i]) ++next;
      found[names.strings[targets[i]]] += next - i;
    }
    return found;
  }

 private:
  std::vector<std::uint32_t> targets_;
  bool are_known_ = true;
};

/// The values that code may refer to: those of the regions around it, up to one that is isolated.
struct Scope {
  static constexpr std::uint32_t undefined = UINT32_MAX;

  std::vector<std::uint32_t> uses;   // of each value, those included that are still to be defined
  std::vector<std::uint32_t> types;  // the numbers of their types, or `undefined`
};

/// One of the regions of an operation while it is read.
struct Region {
  std::uint64_t blocks = 1, values = 0, defined = 0;
  std::size_t first_value = 0;  // in its scope
  unsigned depth = 0;
  std::vector<std::uint32_t> arguments, returned;  // the types of these values, of the first block and of the last
  bool is_returned = false;                        // whether the last operation returns
  std::vector<std::pair<std::size_t, std::uint64_t>> ordered;  // values, and how many uses each has at least
};

/// What is around an operation: sorts, and all operations that combine or compare elements, sorts included.
struct Around {
  unsigned sorts = 0, bodies = 0;

  void begin(const Operation& kind) { sorts += kind.is_sort, bodies += kind.has_body; }
  void end(const Operation& kind) { sorts -= kind.is_sort, bodies -= kind.has_body; }
};

/// In which order the last `values` values are used. MLIR's reader writes to the places that these numbers name.
void use_order(Cursor& at, Region& region, std::uint64_t values) {
  if (values == 0) at.refuse("an order of uses of nothing");
  for (std::uint64_t left = values > 1 ? at.count("orders of uses") : 1; left > 0; --left) {
    const std::uint64_t value = values > 1 ? at.index(values, "values") : 0;
    const std::uint64_t coded = at.number();
    constexpr std::uint64_t max_uses = UINT32_MAX;
    std::uint64_t uses = 0;
    for (std::uint64_t numbers = at.counted(coded >> 1, "numbers"); numbers > 0; --numbers)
      uses = std::max(uses, std::min(at.number(), max_uses) + 1);
    if (coded & 1) region.ordered.emplace_back(region.first_value + region.defined - values + value, uses);
  }
}

/// Notes which function an operation is, or calls. Custom calls have functions as bodies.
void follow_calls(CallGraph& graph, AttributesAndTypes& tables, const Operation& kind,
                  const AttributeCheck::Found& found, unsigned depth, bool in_body) {
  constexpr std::size_t name = 3;  // of a function's attributes
  if (found.empty()) return;
  if (kind.is_function) graph.begin(tables.hash(tables.string(found[name])));
  if (!kind.calls) return;
  const std::uint32_t called = found[*kind.calls];
  if (!kind.is_custom_call) return graph.call(tables.hash(tables.string(called)), depth, in_body);
  for (const std::uint32_t each : tables.elements(called))
    if (const std::uint32_t string = tables.string(each); string != AttributesAndTypes::no_string)
      graph.call(tables.hash(string), depth, /*in_body=*/true);
}

/// For those who need to know of a module only that it is fine.
struct Unobserved {
  void operation(std::size_t, std::optional<std::uint64_t>, const std::optional<Cursor>&) {}
  void value(std::uint64_t) {}
  void place(std::size_t, std::size_t, bool, bool) {}
};

/// Reads a module once. An observer sees each operation, with the numbers of its kind and of the dictionary of its
/// attributes, and its properties; the number of the type of each value; and of each kind of operation in which
/// function it stands, counted from 1, whether in a body there, and whether with other values than numbers.
template <class Observer = Unobserved>
class Module {
 public:
  Module(std::span<const std::uint8_t> bytes, const Path& where)
      : sections_(bytes, where), version_(sections_.version()), weight_left_((1u << 20) + 4 * bytes.size()) {}

  const Names& names() const { return *names_; }
  const AttributesAndTypes& tables() const { return *tables_; }
  const Observer& observer() const { return observer_; }
  CallGraph& graph() { return graph_; }

  /// Whether there was code to check: versions that are not known here pass, which MLIR either refuses or understands.
  bool check() {
    if (version_ > newest_bytecode) return false;
    sections_.find();
    for (const Section kind : {Section::strings, Section::dialects, Section::entries, Section::entry_offsets})
      sections_.needed(kind);
    Cursor top = sections_.needed(Section::code);
    names_.emplace(sections_);
    for (const auto& operation : names_->operations)
      operations_.push_back(operation_of(names_->full_name_of(operation), operation.registered));
    if (const auto& properties = sections_[Section::properties]) read_properties(*properties);
    tables_.emplace(sections_.needed(Section::entries), sections_.needed(Section::entry_offsets), names_->dialects,
                    names_->strings);
    attributes_.emplace(*names_, *tables_);
    Scope scope;
    Region outermost;
    block(top, scope, outermost);
    graph_.check(top);
    return true;
  }

  Contents contents() const {
    Contents found;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].count == 0) continue;
      const std::string name = names_->full_name_of(names_->operations[i]);
      found.operations[name] += operations_[i].count;
      if (operations_[i].is_unchecked) found.unchecked.insert(name);
    }
    found.custom_calls = calls_.counted(*names_);
    found.compares_untyped = compares_untyped_;
    return found;
  }

 private:
  void read_properties(Cursor section) {
    property_section_ = section;
    for (std::uint64_t left = section.count("properties"); left > 0; --left) {
      const std::uint64_t size = section.number();
      properties_.push_back({static_cast<std::uint32_t>(section.place()), static_cast<std::uint32_t>(size)});
      section.bytes(size);
    }
  }

  /// MLIR converts the attributes of each operation for itself, however many operations share them.
  void spend(const Cursor& at, std::uint64_t weight) {
    if (weight > weight_left_) at.refuse("operations that share large attributes over and over");
    weight_left_ -= weight;
  }

  std::uint64_t attribute(Cursor& at) const { return at.index(tables_->attributes(), "attributes"); }

  Region region(Cursor& at, Scope& scope, unsigned depth) {
    if (depth > max_region_depth)
      at.refuse("regions inside of more than " + std::to_string(max_region_depth) + " others");
    Region region;
    region.depth = depth;
    region.blocks = at.count("blocks");
    if (region.blocks == 0) return region;
    region.values = at.count("values");
    // Every value takes a byte where it is defined.
    undefined_ += region.values;
    at.counted(undefined_, "values", at.left_in_module());
    region.first_value = scope.uses.size();
    scope.uses.resize(scope.uses.size() + region.values);
    scope.types.resize(scope.uses.size(), Scope::undefined);
    for (std::uint64_t i = 0; i < region.blocks; ++i) block(at, scope, region);
    if (region.defined != region.values)
      at.refuse(std::to_string(region.defined) + " values in a region of " + std::to_string(region.values));
    for (const auto& [value, uses] : region.ordered)
      if (uses > scope.uses[value]) at.refuse("an order of more uses than there are");
    scope.uses.resize(region.first_value);
    scope.types.resize(region.first_value);
    return region;
  }

  void block(Cursor& at, Scope& scope, Region& region) {
    const std::uint64_t coded = at.number();
    if (coded & 1) {
      if (region.depth == 0) at.refuse("arguments outside of all operations");
      std::vector<std::uint32_t> arguments(at.count("block arguments"));
      for (std::uint32_t& type : arguments) {
        const std::uint64_t argument = at.number();
        const bool optional = version_ >= since::optional_locations;
        type = value_type(at, at.indexed(optional ? argument >> 1 : argument, tables_->types(), "types"));
        if (!optional || (argument & 1)) attribute(at);
      }
      define(at, scope, region, arguments);
      if (version_ >= since::use_lists && at.byte() != 0) use_order(at, region, arguments.size());
      region.arguments = std::move(arguments);
    }
    for (std::uint64_t left = at.counted(coded >> 1, "operations"); left > 0; --left) operation(at, scope, region);
  }

  void define(const Cursor& at, Scope& scope, Region& region, std::span<const std::uint32_t> types) {
    if (types.size() > region.values - region.defined) at.refuse("more values than the region has");
    const std::size_t first = region.first_value + region.defined;
    std::ranges::copy(types, scope.types.begin() + static_cast<std::ptrdiff_t>(first));
    region.defined += types.size();
    undefined_ -= types.size();
  }

  std::uint32_t value_type(const Cursor& at, std::uint64_t type) {
    spend(at, tables_->weight_of_value(type));
    observer_.value(type);
    return static_cast<std::uint32_t>(type);
  }

  void operation(Cursor& at, Scope& scope, Region& region) {
    const std::uint64_t number = at.index(operations_.size(), "operations");
    Operation& kind = operations_[number];
    ++kind.count;
    if (!kind.is_exported)
      at.refuse("an operation " + escaped(shortened(names_->full_name_of(names_->operations[number]))) +
                ", which no export has,");
    // At the top of a module are functions and meshes, and nothing else; and they are nowhere else.
    constexpr unsigned top = 1, body = 2;
    if (!kind.is_module && (kind.is_function || kind.is_mesh) != (region.depth == top))
      at.refuse("a function, or another operation, where it cannot be,");
    const unsigned has = at.byte();
    attribute(at);  // the location
    std::optional<std::uint64_t> dictionary;
    if (has & has_attributes) spend(at, tables_->weight(*(dictionary = attribute(at))));
    std::optional<Cursor> own;
    AttributeCheck::Found found;
    if (has & has_properties) {
      // Properties as an attribute are those of operations that the writer did not know.
      if (version_ < since::native_properties || !kind.registered) at.refuse("properties");
      const Part part = properties_[at.index(properties_.size(), "properties")];
      own = property_section_->slice(part.begin, part.size);
      spend(at, attributes_->properties(kind, *own, found));
      if (dictionary && kind.known && attributes_->replaces_property(*kind.known, *dictionary))
        at.refuse("an operation " + std::string(kind.known->name) + " with an attribute twice");
    } else if (kind.is_vhlo && kind.known) {
      attributes_->dictionary(at, *kind.known, dictionary, found);
    }
    observer_.operation(number, dictionary, own);
    follow_calls(graph_, *tables_, kind, found, region.depth - body, around_.bodies > 0);
    std::uint32_t target = AttributesAndTypes::no_string;
    if (kind.is_custom_call)
      calls_.note(target = attributes_->target(kind, own, has & has_properties ? std::nullopt : dictionary));
    std::vector<std::uint32_t> results, operands;
    if (has & has_results) {
      results.resize(at.count("results"));
      for (std::uint32_t& type : results) type = value_type(at, at.index(tables_->types(), "types"));
    }
    if (has & has_operands) {
      operands.resize(at.count("operands"));
      for (std::uint32_t& type : operands) {
        const std::uint64_t value = at.index(scope.uses.size(), "values");
        type = scope.types[value];
        if (type == Scope::undefined) at.refuse("a value that is used before it is there");
        ++scope.uses[value];
      }
    }
    if (around_.sorts > 0) check_comparison(at, *tables_, kind, operands, results);
    if (has & has_successors) {
      if (kind.known) at.refuse("an operation " + std::string(kind.known->name) + " with successors");
      for (std::uint64_t left = at.count("successors"); left > 0; --left) at.index(region.blocks, "blocks");
    }
    Values values(*tables_);
    if (kind.known) {
      if (!values.fit(kind.known->values, operands, results) || casts_truth_values(*tables_, kind, operands, results) ||
          (kind.rule == TypeRule::cast && !is_cast(*tables_, operands.front(), results.front())))
        at.refuse("an operation " + std::string(kind.known->name) + " with operands or results of another one");
      if (!kind.known->dimensions.empty() && !attributes_->fit(*kind.known, found, operands, results))
        at.refuse("an operation " + std::string(kind.known->name) +
                  " with numbers of dimensions, or sizes, that do not fit");
      kind.is_unchecked = kind.is_unchecked || is_unchecked(*tables_, kind.rule, found, operands, results);
      compares_untyped_ = compares_untyped_ || leaves_sign_open(*tables_, kind, found, operands);
    }
    if (target != AttributesAndTypes::no_string) {
      if (!may_be_hint(*tables_, operands, results)) attributes_->refuse_hint(at, target);
      kind.is_unchecked |= is_unchecked_call(*tables_, names_->strings[target], operands, results);
    }
    attributes_->refuse_lacking(at, kind, found, target, dictionary);
    if (region.depth >= body)
      observer_.place(number, graph_.size(), around_.bodies > 0, has_arrays(*tables_, operands, results));
    const bool defines = region.values != 0;  // otherwise nothing refers to the results
    if (defines) define(at, scope, region, results);
    if (version_ >= since::use_lists && (has & has_use_lists)) use_order(at, region, defines ? results.size() : 0);
    if (region.is_returned) at.refuse("an operation behind one that returns");
    if ((region.is_returned = kind.is_return)) region.returned = std::move(operands);
    around_.begin(kind);
    regions(at, scope, region.depth + 1, has & has_regions, kind.known, values);
    around_.end(kind);
  }

  void regions(Cursor& at, Scope& outside, unsigned depth, bool has_some, const KnownOperation* known, Values& values) {
    const std::uint64_t coded = has_some ? at.number() : 0, count = at.counted(coded >> 1, "regions");
    std::string_view patterns = known ? known->regions : "";
    const auto refuse = [&] { at.refuse("an operation " + std::string(known->name) + " with regions of another one"); };
    std::uint64_t needed = static_cast<std::uint64_t>(std::ranges::count(patterns, '>'));
    const bool may_be_more = patterns.ends_with(" *") || patterns.ends_with(" +");
    if (patterns.ends_with(" *")) --needed;
    if (known && (may_be_more ? count < needed : count != needed)) refuse();
    if (count == 0) return;
    Scope inside;
    const bool isolated = coded & 1, in_section = isolated && version_ >= since::isolated_sections;
    Cursor section = at;
    if (in_section) {
      const auto [kind, content] = at.section();
      if (kind != static_cast<unsigned>(Section::code))
        at.refuse("a section of kind " + std::to_string(kind) + " for a region");
      section = content;
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const Region read = region(in_section ? section : at, isolated ? inside : outside, depth);
      if (!known) continue;
      if (read.blocks == 0) at.refuse("an operation " + std::string(known->name) + " without code");
      const std::string_view pattern = patterns.substr(0, patterns.find(' '));
      if (read.blocks != 1 || !read.is_returned || !values.fit(pattern, read.arguments, read.returned)) refuse();
      if (i + 1 < needed) patterns.remove_prefix(pattern.size() + 1);
    }
  }

  Sections sections_;
  const std::uint64_t version_;
  std::optional<Names> names_;
  std::vector<Operation> operations_;
  struct Part {
    std::uint32_t begin, size;
  };
  std::optional<Cursor> property_section_;
  std::vector<Part> properties_;
  std::optional<AttributesAndTypes> tables_;
  std::optional<AttributeCheck> attributes_;
  bool compares_untyped_ = false;
  Around around_;
  std::uint64_t undefined_ = 0;  // values that the open regions still have to define
  Calls calls_;
  CallGraph graph_;
  Observer observer_;
  std::uint64_t weight_left_;
};

constexpr std::array<std::string_view, 2> counts = {"mhlo.num_partitions", "mhlo.num_replicas"};
constexpr std::array<std::string_view, 2> of_values = {"arg_attrs", "res_attrs"};

/// Keeps each combination of a kind of operation with its attributes once.
struct Seen {
  using Place = std::pair<std::size_t, std::size_t>;  // of properties in their section

  void operation(std::size_t kind, std::optional<std::uint64_t> dictionary, const std::optional<Cursor>& own) {
    const std::uint64_t key = dictionary ? *dictionary + 1 : 0;
    if (!own)
      without_properties.emplace(kind, key);
    else
      with_properties.emplace_back(kind, key, *own);
  }
  void value(std::uint64_t type) { types.insert(type); }
  void place(std::size_t kind, std::size_t function, bool in_body, bool has_arrays) {
    kinds_in.emplace(in_body ? bodies : function, kind, has_arrays);
  }

  std::set<std::pair<std::size_t, std::uint64_t>> without_properties;
  std::vector<std::tuple<std::size_t, std::uint64_t, Cursor>> with_properties;
  std::set<std::uint64_t> types;
  static constexpr std::size_t bodies = 0;                        // in place of a function, which are counted from 1
  std::set<std::tuple<std::size_t, std::size_t, bool>> kinds_in;  // a function, a kind, whether with arrays
};

class BytecodeInventory {
 public:
  explicit BytecodeInventory(Module<Seen>& module)
      : module_(module), names_(module.names()), tables_(module.tables()) {}

  Inventory inventory() {
    Contents contents = module_.contents();
    found_.operations = std::move(contents.operations);
    found_.unchecked = std::move(contents.unchecked);
    if (!contents.custom_calls) found_.custom_calls.reset();
    for (const auto& [kind, dictionary] : module_.observer().without_properties)
      look_at(kind, dictionary, std::nullopt);
    for (const auto& [kind, dictionary, own] : module_.observer().with_properties) look_at(kind, dictionary, own);
    for (const std::uint64_t type : module_.observer().types) value(tables_.attributes() + type);
    const std::vector<bool> in_bodies = module_.graph().called_in_bodies();
    for (const auto& [function, kind, has_arrays] : module_.observer().kinds_in)
      if (function == Seen::bodies || in_bodies[function - 1])
        found_.in_bodies[names_.full_name_of(names_.operations[kind])] |= has_arrays;
    return std::move(found_);
  }

 private:
  /// Of an operation: an attribute that it always has, by its name and its number.
  struct Call {
    std::optional<std::uint64_t> target, has_side_effect;
    void take(std::string_view name, std::uint64_t attribute) {
      if (name == "call_target_name") target = attribute;
      if (name == "has_side_effect") has_side_effect = attribute;
    }
  };

  void look_at(std::size_t kind, std::uint64_t dictionary, std::optional<Cursor> own) {
    const Names::Operation& operation = names_.operations[kind];
    const std::string_view dialect = names_.dialect_of(operation), name = names_.name_of(operation);
    const bool is_call = name.starts_with("custom_call");
    const KnownOperation* const known = dialect == "vhlo" ? known_operation(name) : nullptr;
    Call call;
    if (own && known) {
      for (const std::string_view one : known->attribute_names()) attribute(one, own->number(), call);
    } else if (own && dialect != "builtin" && dialect != "sdy") {  // those read their own attributes only
      found_.unreadable.insert(names_.full_name_of(operation));
    }
    if (dictionary > 0) {
      const auto entries = tables_.elements(dictionary - 1);
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
        const std::uint32_t string = tables_.string(entries[i]);
        if (string == AttributesAndTypes::no_string) {
          found_.unreadable.insert(names_.full_name_of(operation));
          continue;
        }
        const std::string_view one = names_.strings[string];
        attribute(one, entries[i + 1], call);
        if (!known || !known->place_of(one)) (is_call ? found_.call_attributes : found_.attributes).insert(one);
      }
      // A dictionary as a text, or something else in its place.
      if (entries.empty()) found_.unreadable.insert(names_.full_name_of(operation));
    }
    if (is_call) note(call);
  }

  void attribute(std::string_view name, std::uint64_t value, Call& call) {
    call.take(name, value);
    if (std::ranges::find(counts, name) != counts.end()) found_.device_counts[names_view(name)] = integer(value);
    if (std::ranges::find(of_values, name) == of_values.end()) return;
    for (const std::uint32_t one : tables_.elements(value)) {
      const auto entries = tables_.elements(one);
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
        if (const std::uint32_t string = tables_.string(entries[i]); string != AttributesAndTypes::no_string)
          found_.attributes.insert(names_.strings[string]);
    }
  }

  void note(const Call& call) {
    if (!found_.custom_calls) return;
    const auto string = call.target ? tables_.string(*call.target) : AttributesAndTypes::no_string;
    if (string == AttributesAndTypes::no_string) return found_.custom_calls.reset();
    bool& has_side_effect = (*found_.custom_calls)[names_.strings[string]];
    has_side_effect = has_side_effect || !call.has_side_effect || is_true(*call.has_side_effect);
  }

  /// Whether a truth value is true, or something else.
  bool is_true(std::uint64_t attribute) const {
    constexpr unsigned truth = 2;
    if (tables_.vhlo_kind(attribute) != truth) return true;
    Cursor data = tables_.data(attribute);
    data.number();  // the kind
    return data.number() != 0;
  }

  std::optional<std::int64_t> integer(std::uint64_t attribute) const {
    constexpr std::uint64_t of_builtin = 8, of_vhlo = 9;
    if (!tables_.encoded(attribute)) return std::nullopt;
    Cursor data = tables_.data(attribute);
    const std::uint64_t kind = data.number();
    const std::string_view dialect = tables_.dialect(attribute);
    if (!(dialect == "builtin" && kind == of_builtin) && !(dialect == "vhlo" && kind == of_vhlo)) return std::nullopt;
    const std::int32_t bits = tables_.bits(tables_.attributes() + data.number());
    if (bits <= 0 || bits > 64) return std::nullopt;
    return bits <= 8 ? static_cast<std::int8_t>(data.byte()) : data.signed_number();
  }

  /// The type of a value.
  void value(std::uint64_t type) {
    constexpr std::uint64_t vhlo_tensor = 20, vhlo_bounded = 21, vhlo_token = 22, vhlo_tuple = 23;
    constexpr std::uint64_t builtin_tensor = 13, builtin_bounded = 14, builtin_tuple = 15;
    const std::string dialect(tables_.dialect(type));
    const bool is_vhlo = dialect == "vhlo";
    if (!tables_.encoded(type) || (!is_vhlo && dialect != "builtin")) return void(found_.unknown_types.insert(dialect));
    Cursor data = tables_.data(type);
    const std::uint64_t kind = data.number();
    if (kind == (is_vhlo ? vhlo_tensor : builtin_tensor)) return array(type, data);
    if (kind == (is_vhlo ? vhlo_bounded : builtin_bounded)) return void(found_.unknown_types.insert("with bounds"));
    if (kind == (is_vhlo ? vhlo_tuple : builtin_tuple)) {
      for (const std::uint32_t part : tables_.elements(type)) value(part);
      return;
    }
    if (!is_vhlo || kind != vhlo_token) found_.unknown_types.insert(dialect + " type " + std::to_string(kind));
  }

  void array(std::uint64_t type, Cursor shape) {
    const std::int32_t bits = tables_.bits(type);
    std::uint64_t bytes = static_cast<std::uint64_t>((bits + 7) / 8);
    for (std::uint64_t left = shape.number(); left > 0; --left) {
      const std::int64_t size = shape.signed_number();
      if (size >= 0)
        bytes *= static_cast<std::uint64_t>(size);
      else
        found_.has_open_sizes = true;
    }
    constexpr unsigned signed_of_two_bits = 31;
    if (bits == 2)  // on CPUs, XLA has too little memory for some of them
      found_.unknown_types.insert(tables_.element(type - tables_.attributes()) == signed_of_two_bits ? "tensor<?xi2>"
                                                                                                     : "tensor<?xui2>");
    if (bits <= 0) return found_.largest_array.reset();
    if (found_.largest_array) found_.largest_array = std::max(*found_.largest_array, bytes);
  }

  static std::string_view names_view(std::string_view name) { return *std::ranges::find(counts, name); }

  Module<Seen>& module_;
  const Names& names_;
  const AttributesAndTypes& tables_;
  Inventory found_;
};

}  // namespace

void check_bytecode(std::span<const std::uint8_t> module, const Path& where) { Module<>(module, where).check(); }

std::optional<Contents> read_contents(std::span<const std::uint8_t> module, const Path& where) {
  Module<> read(module, where);
  if (!read.check()) return std::nullopt;
  return read.contents();
}

std::optional<Inventory> read_inventory(std::span<const std::uint8_t> module, const Path& where) {
  Module<Seen> read(module, where);
  if (!read.check()) return std::nullopt;
  return BytecodeInventory(read).inventory();
}

}  // namespace jaxexp::wire

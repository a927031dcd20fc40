// The code of a module in MLIR bytecode, against its tables.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/flat_map.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/call_graph.h"
#include "wire/bytecode/cursor.h"
#include "wire/bytecode/names.h"
#include "wire/bytecode/operations.h"
#include "wire/bytecode/sections.h"
#include "wire/bytecode/tables.h"
#include "wire/bytecode/types.h"
#include "wire/bytecode/values.h"

namespace jaxexp::wire {

// What an operation has, as bits.
inline constexpr unsigned has_attributes = 1, has_results = 2, has_operands = 4, has_successors = 8, has_regions = 16,
                          has_use_lists = 32, has_properties = 64;

/// How deep regions nest: a level for each loop or branch inside another.
inline constexpr unsigned max_region_depth = 256;

/// The version of the calling convention that XLA's FFI has, as a number of one byte.
inline constexpr std::uint8_t typed_call = 4 << 1 | 1;

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

inline Operation operation_of(std::string_view name, bool registered) {
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
inline bool casts_truth_values(const AttributesAndTypes& tables, const Operation& kind,
                               std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  return kind.rule == TypeRule::bits &&
         tables.holds_truth_values(operands.front()) != tables.holds_truth_values(results.front());
}

/// Whether integers are compared, and only their type says whether they have signs.
inline bool leaves_sign_open(const AttributesAndTypes& tables, const Operation& kind,
                             std::span<const std::uint32_t> attributes, std::span<const std::uint32_t> operands) {
  return kind.is_comparison && tables.choice(attributes.front()) == 0 && tables.holds_integers(operands.front());
}

/// Whether an operation has other values than numbers.
inline bool has_arrays(const AttributesAndTypes& tables, std::span<const std::uint32_t> operands,
                       std::span<const std::uint32_t> results) {
  const auto is_number = [&](std::uint32_t type) { return tables.rank(type) == 0; };
  return !std::ranges::all_of(operands, is_number) || !std::ranges::all_of(results, is_number);
}

/// An operation of a comparison. XLA sorts outside of an array if two comparisons of the same elements differ, and has
/// the arrays of a comparison on its stack.
inline void check_comparison(const Cursor& at, const AttributesAndTypes& tables, const Operation& kind,
                             std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  if (!kind.is_repeatable) at.refuse("a sort that may compare the same elements with different results");
  if (has_arrays(tables, operands, results)) at.refuse("a sort that compares by more than numbers");
}

/// Whether lengths are those of an FFT. XLA takes them for what it reads and writes, and StableHLO compares them with
/// the types for some kinds only. Half of a spectrum is compared when its size is known.
inline bool are_last_sizes(const AttributesAndTypes::Numbers& lengths, std::uint64_t kind,
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

/// What a custom call says of itself.
struct CallAttributes {
  std::uint32_t target = AttributesAndTypes::no_string;  // the number of a string
  std::uint32_t version = 0;                             // of the calling convention: the number of an attribute
};

/// Whether custom calls with a target only say something of their first operand.
inline bool is_hint(std::string_view target) {
  constexpr std::string_view hints[] = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
                                        "annotate_device_placement"};
  return std::ranges::find(hints, target) != std::end(hints);
}

/// Whether a custom call has the values of one that only says something: an array, behind it the sizes of the result
/// where these are open, and a result. XLA ends the process at others.
inline bool may_be_hint(const AttributesAndTypes& tables, std::span<const std::uint32_t> operands,
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
        if (has_word(known.names, names_.strings[string])) return true;
    return false;
  }

  /// Refuses a call that is a hint, and has operands or results of another one.
  void refuse_hint(const Cursor& at, const CallAttributes& call) const {
    const std::string_view target = names_.strings[call.target];
    if (is_hint(target)) at.refuse("a custom call " + std::string(target) + " with operands or results of another one");
  }

  /// Refuses what lacks an attribute that StableHLO reads where it computes shapes.
  void refuse_lacking(const Cursor& at, const Operation& kind, const Found& attributes, const CallAttributes& call,
                      std::optional<std::uint64_t> dictionary) const {
    constexpr unsigned integer = 9;
    constexpr std::string_view size = "k", message = "error_message";
    if (kind.known && kind.is_composite && is_text(tables_.string(attributes[2]), "chlo.top_k")) {
      const auto found = values(attributes[0], {&size, 1}).front();
      if (!found || tables_.vhlo_kind(*found) != integer) at.refuse("a composite chlo.top_k without a number as its k");
    }
    if (!is_text(call.target, "shape_assertion")) return;
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
      std::string_view names = known.names;
      std::vector<std::string_view> wanted;
      for (std::size_t i = 0; i < known.kinds.size(); ++i) {
        wanted.push_back(names.substr(0, names.find(' ')));
        names.remove_prefix(std::min(wanted.back().size() + 1, names.size()));
      }
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

  /// What a custom call calls, as the number of a string, and how, as the number of an attribute. The target is
  /// `no_string` for those whose attributes were not checked, for which it is not known where that stands.
  CallAttributes call(const Operation& kind, std::optional<Cursor> own, std::optional<std::uint64_t> dictionary) {
    if (kind.known && own) {
      const auto version = static_cast<std::uint32_t>(attribute(*own));
      attribute(*own);  // between them in alphabetical order
      return {tables_.string(attribute(*own)), version};
    }
    if (!kind.known || !dictionary) return {};
    const auto [found, is_new] = calls_.insert(*dictionary + 1);
    if (is_new) {
      constexpr std::string_view names[] = {"call_target_name", "api_version"};
      const auto values = this->values(dictionary, names);
      if (values[0] && values[1]) found = {tables_.string(*values[0]), *values[1]};
    }
    return found;
  }

 private:
  std::uint64_t attribute(Cursor& at) const { return at.index(tables_.attributes(), "attributes"); }

  bool is_text(std::uint32_t string, std::string_view text) const {
    return string != AttributesAndTypes::no_string && names_.strings[string] == text;
  }

  static bool has_word(std::string_view words, std::string_view word) {
    for (std::size_t end = 0; !words.empty(); words.remove_prefix(std::min(end + 1, words.size())))
      if (words.substr(0, end = std::min(words.find(' '), words.size())) == word) return true;
    return false;
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
  FlatMap<CallAttributes> calls_;  // custom calls, by their dictionaries
};

/// The custom calls of a module.
class Calls {
 public:
  void note(const CallAttributes& call) {
    if (call.target == AttributesAndTypes::no_string)
      are_known_ = false;
    else
      calls_.push_back(call);
  }

  /// How many there are of each target; nothing where a target is not known.
  std::optional<std::map<std::string_view, std::uint64_t>> counted(const Names& names) const {
    if (!are_known_) return std::nullopt;
    // Sorted by number first: comparing a long target for each of its calls would take long.
    std::vector<std::uint32_t> targets;
    for (const CallAttributes& call : calls_) targets.push_back(call.target);
    std::ranges::sort(targets);
    std::map<std::string_view, std::uint64_t> found;
    for (std::size_t i = 0, next = 0; i < targets.size(); i = next) {
      while (next < targets.size() && targets[next] == targets[i]) ++next;
      found[names.strings[targets[i]]] += next - i;
    }
    return found;
  }

  /// Where the versions of the calls of some targets stand in the module: bytes that encode an untyped call.
  std::optional<std::set<const std::uint8_t*>> untyped(const Names& names, const AttributesAndTypes& tables,
                                                       const std::function<bool(std::string_view)>& is_meant) const {
    std::set<std::uint32_t> versions, others;
    std::map<std::uint32_t, bool> meant;  // by targets
    for (const auto& [target, version] : calls_) {
      const auto [known, is_new] = meant.try_emplace(target);
      if (is_new) known->second = is_meant(names.strings[target]);
      (known->second ? versions : others).insert(version);
    }
    std::set<const std::uint8_t*> places;
    for (const std::uint32_t version : versions) {
      if (!are_known_ || others.contains(version)) return std::nullopt;
      Cursor data = tables.data(version);
      data.number();  // the kind of the attribute
      const std::span<const std::uint8_t> number = data.bytes(data.left());
      if (number.size() != 1) return std::nullopt;
      if (number.front() != typed_call) places.insert(number.data());
    }
    return places;
  }

 private:
  std::vector<CallAttributes> calls_;
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
inline void use_order(Cursor& at, Region& region, std::uint64_t values) {
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
inline void follow_calls(CallGraph& graph, AttributesAndTypes& tables, const Operation& kind,
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

/// Who needs to see nothing of a module but that it is fine.
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

  std::optional<std::set<const std::uint8_t*>> untyped(const std::function<bool(std::string_view)>& is_meant) const {
    return calls_.untyped(*names_, *tables_, is_meant);
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
    CallAttributes call;
    if (kind.is_custom_call)
      calls_.note(call = attributes_->call(kind, own, has & has_properties ? std::nullopt : dictionary));
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
    if (call.target != AttributesAndTypes::no_string) {
      if (!may_be_hint(*tables_, operands, results)) attributes_->refuse_hint(at, call);
      kind.is_unchecked |= is_unchecked_call(*tables_, names_->strings[call.target], operands, results);
    }
    attributes_->refuse_lacking(at, kind, found, call, dictionary);
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

}  // namespace jaxexp::wire

// A module is evaluated as far as its sizes go, and what is not a size is written anew.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/refine/code.h"
#include "runtime/refine/infer.h"
#include "runtime/refine/numbers.h"
#include "runtime/refine/tables.h"
#include "wire/base/digest.h"

namespace jaxexp::runtime::refine {

/// How many calls and regions may be inside of one another: the stack of a thread holds as many.
inline constexpr unsigned max_depth = 256;

class Refiner {
 public:
  /// `size` is that of the module in bytes: a measure for how much may be written.
  Refiner(Tables& tables, const Code& code, std::size_t size);

  /// The top of the module for these shapes of the main function's arguments.
  Block refined(std::span<const Shape> arguments);

 private:
  static constexpr Id none = UINT32_MAX;

  /// A value that is written.
  struct Value {
    Id type;
    const Known* known = nullptr;
    Id summand = none;              // it is the sum of this value ...
    const Known* offset = nullptr;  // ... and of this
  };

  /// A function of the module. Its values are numbered from `first` on.
  struct Function {
    const Operation* operation;
    std::string_view name;
    Id first = none, behind = 0;
    bool is_symbolic = false;  // it, or one that it calls, has a size that is open
    bool is_looked_at = false;
    std::vector<std::string_view> callees = {};
  };

  /// A function for one set of arguments.
  struct Specialized {
    Id symbol = 0;  // a string attribute
    std::vector<Id> results;
    std::vector<const Known*> known;  // of the results
    std::vector<bool> is_dropped;     // of the arguments
    bool is_pure = false;             // nothing is left of it but what computes its results
    bool is_constant = false;         // these are known, and written where it is called
    bool is_done = false;
    std::optional<Operation> function = {};  // until something needs it
  };

  using Types = std::vector<Id>;
  using Numbers = std::vector<const Known*>;  // null where a value is not known

  // refiner.cpp
  void look_at(Function& function, const Operation& operation);
  bool is_symbolic(Function& function, unsigned depth);
  Function& function(std::string_view name);
  Specialized& specialized(Function& function, const Types& types, const Numbers& known);
  void specialize(Function& function, const Types& types, const Numbers& known, Specialized& result);
  Id needed(Specialized& specialized);  // its symbol
  std::vector<Id> new_values(const Function& function);
  std::string new_name(std::string_view name);
  Block evaluated(const Block& block, const Types& types);
  void operation(const Operation& in);
  void call(const Operation& in);
  void composite(const Operation& in);
  void sweep(Block& block);
  void spend(std::uint64_t operations = 1);

  /// Infers what an operation computes, evaluates its regions, writes it or what it computes, and notes that for the
  /// results of `in`.
  void finish(const Operation& in, Operation out);
  Operation begun(const Operation& in);
  std::optional<Id> type_from_branch(const Tables::Kind& kind, const Operation& out, std::size_t result) const;
  Id emit(Operation out);
  Id constant(Id location, Id type, Known known);
  const Known* keep(Known known);
  std::optional<Known> computed(const Operation& out);
  Id shaped(Id declared, const Shape& shape);

  Id value(Id source) const;
  void set(Id source, Id value) { values_of_[source - first_] = value; }
  void set_all(const Operation& in, Id first);
  const Type& type(Id value) { return tables_.type(values_[value].type); }
  const Known* known(Id value) const { return values_[value].known; }
  Types types_of(std::span<const Id> values) const;

  // statics.cpp
  bool made_static(const Operation& in);
  Operation written_as(const Operation& in, std::string_view kind, Named attributes, std::size_t operands);
  Shape sizes(const Operation& in, std::size_t operand);
  Integers numbers(const Operation& in, std::size_t operand);
  void dynamic_slice(const Operation& in);

  // custom_calls.cpp
  void custom_call(const Operation& in);
  Shape of_batch(const Operation& in, Shape declared, const Shape& matrices) const;
  void assertion(const Operation& in);
  void with_shape_operands(const Operation& in, Id indices);
  void called_computations(Operation& out);
  void reduce_window(const Operation& in);
  void random_bits(const Operation& in);
  void top_k(const Operation& in);
  Block body(const Operation& in, Function& function);
  Block is_greater(Id location, Id element);
  [[noreturn]] void refuse_operation(const Operation& in, std::string_view target = {}) const;

  Tables& tables_;
  const Code& code_;
  std::map<std::string_view, Function> functions_;
  std::set<std::string, std::less<>> names_;  // of everything at the top of the module
  std::set<std::string_view> used_names_;     // of functions that keep their own
  std::unordered_map<std::string, Specialized, wire::SeededHash> specialized_;
  std::vector<Operation> written_;  // functions
  std::deque<Known> kept_;
  std::vector<Value> values_;
  std::vector<bool> used_;  // of the values

  // The function that is being evaluated.
  std::vector<Id> values_of_;
  Id first_ = 0;
  Block* block_ = nullptr;

  unsigned depth_ = 0;
  std::uint64_t left_;  // operations that may still be looked at
};

}  // namespace jaxexp::runtime::refine

// Each function is written for the types of its arguments and for the sizes among them, which it then has as
// constants. All constants are written where they become known, and those that nothing uses are taken away at the end.
#include "runtime/refine/refine.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "jaxexp/run_error.h"
#include "runtime/refine/numbers.h"
#include "runtime/signature/dimensions.h"
#include "wire/base/digest.h"

namespace jaxexp::runtime::refine {
namespace {

constexpr std::string_view with_sizes[] = {
    "dynamic_broadcast_in_dim", "dynamic_conv",       "dynamic_gather",     "dynamic_iota", "dynamic_pad",
    "dynamic_reshape",          "get_dimension_size", "real_dynamic_slice", "rng"};

/// "{1}" stands for the second one of these numbers.
std::string filled(std::string_view text, const Integers& numbers) {
  std::string filled;
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('{', 1), text.size());
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data() + 1, text.data() + plain, number);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (text.front() == '{' && error == std::errc() && digits < plain && text[digits] == '}' &&
        number < numbers.size()) {
      filled += std::to_string(numbers[number]);
      text.remove_prefix(digits + 1);
    } else {
      filled += text.substr(0, plain);
      text.remove_prefix(plain);
    }
  }
  return filled;
}

// What JAX's assertions about shapes say. The counterpart in Python is _kernel/call/constraints.py.

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_number(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_digit); }

bool is_name(std::string_view text) {
  return !text.empty() && is_letter(text.front()) &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

/// Takes what stands in front of a mark from a text, and the mark.
std::optional<std::string_view> take(std::string_view& text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  const std::string_view found = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return found;
}

struct Variable {
  std::string_view name, value, size, place, whole;  // the size of a place is an expression, and a number
};

std::vector<Variable> variables_in(std::string_view text) {
  std::vector<Variable> found;
  if (!take(text, "Obtained dimension variables: ")) return found;
  while (take(text, "'")) {
    const auto name = take(text, "' = "), value = take(text, " from specification '"),
               size = take(text, "' for dimension "), place = take(text, " (= "), whole = take(text, "), ");
    if (!whole) break;
    found.push_back({*name, *value, *size, *place, *whole});
  }
  return found;
}

bool names(std::string_view formula, std::string_view name) {
  const auto is_part = [](char c) { return is_letter(c) || is_digit(c); };
  for (std::size_t at = formula.find(name); at != formula.npos; at = formula.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_part(formula[at - 1])) && (end == formula.size() || !is_part(formula[end]))) return true;
  }
  return false;
}

/// Of a constraint on one variable by itself: which one, and what it has to be.
std::optional<std::pair<std::string_view, std::string>> single(std::string_view constraint) {
  for (const auto& [sign, words] : {std::pair(">=", "at least "), std::pair("<=", "at most ")}) {
    std::string_view right = constraint;
    const auto left = take(right, sign);
    if (left && is_name(*left) && is_number(right)) return std::pair(*left, words + std::string(right));
  }
  std::string_view rest = constraint;
  const auto left = take(rest, "==");
  if (!left) return std::nullopt;
  std::string_view product = *left;
  const auto factor = take(product, "*");  // what JAX makes of mod
  std::string_view call = factor ? product : *left;
  const auto function = take(call, "("), name = take(call, ","), divisor = take(call, ")");
  if (!divisor || !call.empty() || !is_name(*name) || !is_number(*divisor)) return std::nullopt;
  const bool is_multiple =
      factor ? *function == "floordiv" && *factor == *divisor && rest == *name : *function == "mod" && rest == "0";
  if (!is_multiple) return std::nullopt;
  return std::pair(*name, "a multiple of " + std::string(*divisor));
}

/// An assertion about a constraint in the words of jaxexp's errors in Python, as in "args[0].shape[1] must be a
/// multiple of 2, found 3 (exported with the constraint mod(b, 2) == 0)". Other texts stay as they are.
std::string in_own_words(std::string_view assertion) {
  constexpr std::size_t longest = 1 << 14;
  if (assertion.size() > longest) return wire::shortened(assertion, longest);
  std::string_view text = assertion;
  if (!take(text, "do not match the symbolic shape constraint ")) return std::string(assertion);
  const auto constraint = take(text, ". Expected '");
  const std::vector<Variable> variables = variables_in(text);
  if (!constraint || variables.empty()) return std::string(assertion);
  std::string dense(*constraint);
  std::erase(dense, ' ');
  if (const auto known = single(dense))
    for (const Variable& variable : variables)
      if (variable.name == known->first && variable.size == variable.name)
        return std::string(variable.place) + " must be " + known->second + ", found " + std::string(variable.value) +
               " (exported with the constraint " + std::string(*constraint) + ')';
  std::string said = "the sizes of the arguments must satisfy " + std::string(*constraint) + ", found ";
  bool is_first = true;
  for (const Variable& variable : variables) {
    if (!names(*constraint, variable.name)) continue;
    if (!std::exchange(is_first, false)) said += ", ";
    ((((said += variable.name) += " = ") += variable.value) += " (") += variable.place;
    if (variable.size != variable.name) (((said += " is ") += variable.size) += " = ") += variable.whole;
    said += ')';
  }
  return said;
}

// The shapes of results, by the rules of StableHLO's specification.

[[noreturn]] void refuse_sizes() { refuse("one of its operations does not fit the sizes that it gets"); }

/// A number that is there, and the size of something.
std::int64_t size(Checked found) {
  constexpr std::int64_t most = std::int64_t{1} << 46;
  if (!found || *found < 0 || *found > most) refuse_sizes();
  return *found;
}

bool contains(const Integers& numbers, std::size_t number) {
  return std::ranges::find(numbers, static_cast<std::int64_t>(number)) != numbers.end();
}

std::int64_t at(const Integers& numbers, std::size_t i) {
  if (i >= numbers.size()) refuse_sizes();
  return numbers[i];
}

/// How long a dimension is with gaps between its elements.
Checked dilated(std::int64_t length, std::int64_t dilation) {
  if (dilation < 1) refuse_sizes();
  return length == 0 ? Checked(0) : add(multiply(length - 1, dilation), 1);
}

std::int64_t windows(Checked length, Checked window, std::int64_t stride) {
  if (!length || !window || *length < 0 || stride < 1) refuse_sizes();
  return *window > *length ? 0 : size(add(floor_divide(add(length, multiply(window, -1)), stride), 1));
}

Shape without(const Shape& shape, const Integers& dimensions) {
  Shape left;
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (!contains(dimensions, d)) left.push_back(shape[d]);
  return left;
}

/// What decides the shape of a result.
struct Inputs {
  Tables& tables;
  const Operation& operation;
  std::span<const Type* const> operands;  // each with a static shape, where it is a tensor
  std::size_t result;

  const Shape& shape(std::size_t operand) const {
    if (operand >= operands.size() || !operands[operand]->is_tensor) refuse_sizes();
    return operands[operand]->shape;
  }

  Integers integers(std::string_view attribute) const { return tables.needed_integers(operation, attribute); }
  std::int64_t integer(std::string_view attribute) const { return tables.integer(tables.needed(operation, attribute)); }
};

/// The size of a dimension, which has to be there. Throws RunError.
std::int64_t size_at(const Shape& shape, std::int64_t dimension) {
  if (dimension < 0 || static_cast<std::size_t>(dimension) >= shape.size()) refuse_sizes();
  return shape[static_cast<std::size_t>(dimension)];
}

// What attributes or numbers ask for. These throw RunError where they do not fit.
Shape padded(const Shape& operand, const Integers& low, const Integers& high, const Integers& interior) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const Checked inside = dilated(operand[d], size(at(interior, d)) + 1);
    found.push_back(size(add(add(inside, at(low, d)), at(high, d))));
  }
  return found;
}

Shape sliced_shape(const Shape& operand, const Integers& starts, const Integers& limits, const Integers& strides) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const std::int64_t start = at(starts, d), limit = at(limits, d), stride = at(strides, d);
    if (start < 0 || start > limit || limit > operand[d] || stride < 1) refuse_sizes();
    found.push_back(start == limit ? 0 : (limit - start - 1) / stride + 1);
  }
  return found;
}

/// `padding` has two numbers for each dimension.
Shape windowed(const Shape& operand, const Integers& window, const Integers& strides, const Integers& base_dilations,
               const Integers& window_dilations, const Integers& padding) {
  Shape found;
  for (std::size_t d = 0; d < operand.size(); ++d) {
    const Checked inside = dilated(operand[d], at(base_dilations, d));
    found.push_back(windows(add(add(inside, at(padding, 2 * d)), at(padding, 2 * d + 1)),
                            dilated(size(at(window, d)), at(window_dilations, d)), at(strides, d)));
  }
  return found;
}

Shape gathered(const Inputs& inputs, const Integers& slice_sizes) {
  const Integers offsets = inputs.integers("offset_dims");
  Integers dropped = inputs.integers("collapsed_slice_dims");
  if (inputs.tables.attribute(inputs.operation, "operand_batching_dims"))
    for (const std::int64_t d : inputs.integers("operand_batching_dims")) dropped.push_back(d);
  const Shape slice = without(slice_sizes, dropped);
  const Shape batch = without(inputs.shape(1), {inputs.integer("index_vector_dim")});
  Shape found;
  std::size_t next_offset = 0, next_batch = 0;
  for (std::size_t d = 0; d < offsets.size() + batch.size(); ++d)
    found.push_back(contains(offsets, d) ? at(slice, next_offset++) : at(batch, next_batch++));
  return found;
}

Shape convolved(const Inputs& inputs, const Integers& padding) {
  const Shape &left = inputs.shape(0), &right = inputs.shape(1);
  const Integers input = inputs.integers("input_spatial_dimensions"),
                 kernel = inputs.integers("kernel_spatial_dimensions"),
                 output = inputs.integers("output_spatial_dimensions");
  const auto or_ones = [&](std::string_view attribute) {
    return inputs.tables.attribute(inputs.operation, attribute) ? inputs.integers(attribute)
                                                                : Integers(input.size(), 1);
  };
  const Integers strides = or_ones("window_strides"), left_dilation = or_ones("lhs_dilation"),
                 right_dilation = or_ones("rhs_dilation");
  Shape found(left.size(), 0);
  const auto set = [&](std::int64_t dimension, std::int64_t length) {
    size_at(found, dimension);
    found[static_cast<std::size_t>(dimension)] = length;
  };
  const std::int64_t groups = inputs.integer("batch_group_count");
  if (groups < 1) refuse_sizes();
  set(inputs.integer("output_batch_dimension"), size_at(left, inputs.integer("input_batch_dimension")) / groups);
  set(inputs.integer("output_feature_dimension"), size_at(right, inputs.integer("kernel_output_feature_dimension")));
  for (std::size_t i = 0; i < input.size(); ++i) {
    const Checked inside = dilated(size_at(left, input[i]), at(left_dilation, i));
    set(at(output, i), windows(add(add(inside, at(padding, 2 * i)), at(padding, 2 * i + 1)),
                               dilated(size_at(right, at(kernel, i)), at(right_dilation, i)), at(strides, i)));
  }
  return found;
}

Shape same(const Inputs& in) { return in.shape(0); }
Shape of_second(const Inputs& in) { return in.shape(1); }
Shape of_each(const Inputs& in) { return in.shape(in.result); }

Shape transposed(const Inputs& in) {
  Shape found;
  for (const std::int64_t d : in.integers("permutation")) found.push_back(size_at(in.shape(0), d));
  return found;
}

Shape concatenated(const Inputs& in) {
  Shape found = in.shape(0);
  const std::int64_t d = in.integer("dimension");
  Checked length = size_at(found, d);
  for (std::size_t i = 1; i < in.operands.size(); ++i) length = add(length, size_at(in.shape(i), d));
  found[static_cast<std::size_t>(d)] = size(length);
  return found;
}

Shape reduced(const Inputs& in) { return without(in.shape(in.result), in.integers("dimensions")); }

Integers or_ones(const Inputs& in, std::string_view attribute) {
  const auto found = in.tables.attribute(in.operation, attribute);
  return found ? in.integers(attribute) : Integers(in.shape(in.result).size(), 1);
}

Shape reduced_by_windows(const Inputs& in) {
  return windowed(in.shape(in.result), in.integers("window_dimensions"), or_ones(in, "window_strides"),
                  or_ones(in, "base_dilations"), or_ones(in, "window_dilations"), in.integers("padding"));
}

Shape product(const Inputs& in) {
  const Integers batch = in.integers("lhs_batching_dimensions"), other_batch = in.integers("rhs_batching_dimensions");
  Integers left = in.integers("lhs_contracting_dimensions"), right = in.integers("rhs_contracting_dimensions");
  Shape found;
  for (const std::int64_t d : batch) found.push_back(size_at(in.shape(0), d));
  left.insert(left.end(), batch.begin(), batch.end());
  right.insert(right.end(), other_batch.begin(), other_batch.end());
  for (const std::int64_t length : without(in.shape(0), left)) found.push_back(length);
  for (const std::int64_t length : without(in.shape(1), right)) found.push_back(length);
  return found;
}

Shape transformed(const Inputs& in) {
  enum : std::uint64_t { forward, inverse, real, inverse_real };
  Shape found = in.shape(0);
  const std::uint64_t kind = in.tables.number(in.tables.needed(in.operation, "fft_type"));
  const Integers lengths = in.integers("fft_length");
  if (found.empty() || lengths.empty()) refuse_sizes();
  if (kind == real) found.back() = size(lengths.back()) / 2 + 1;
  if (kind == inverse_real) found.back() = lengths.back();
  return found;
}

/// A result of other numbers may have one dimension more or less, whose size is known.
Shape cast(const Inputs& in) {
  Shape found = in.tables.type(in.operation.results.at(in.result)).shape;
  const Shape& operand = in.shape(0);
  for (std::size_t d = 0; d < std::min(found.size(), operand.size()); ++d) found[d] = operand[d];
  return found;
}

constexpr std::string_view elementwise[] = {"abs",
                                            "add",
                                            "and",
                                            "atan2",
                                            "cbrt",
                                            "ceil",
                                            "compare",
                                            "complex",
                                            "convert",
                                            "cosine",
                                            "count_leading_zeros",
                                            "divide",
                                            "exponential",
                                            "exponential_minus_one",
                                            "floor",
                                            "imag",
                                            "is_finite",
                                            "log",
                                            "log_plus_one",
                                            "logistic",
                                            "maximum",
                                            "minimum",
                                            "multiply",
                                            "negate",
                                            "not",
                                            "or",
                                            "popcnt",
                                            "power",
                                            "real",
                                            "reduce_precision",
                                            "remainder",
                                            "round_nearest_afz",
                                            "round_nearest_even",
                                            "rsqrt",
                                            "shift_left",
                                            "shift_right_arithmetic",
                                            "shift_right_logical",
                                            "sign",
                                            "sine",
                                            "sqrt",
                                            "subtract",
                                            "tan",
                                            "tanh",
                                            "xor"};
static_assert(std::ranges::is_sorted(elementwise));

const std::unordered_map<std::string_view, std::function<Shape(const Inputs&)>> rules = {
    {"all_reduce", of_each},
    {"bitcast_convert", cast},
    {"cholesky", same},
    {"clamp", of_second},
    {"collective_broadcast", same},
    {"collective_permute", same},
    {"concatenate", concatenated},
    {"convolution", [](const Inputs& in) { return convolved(in, in.integers("padding")); }},
    {"dot_general", product},
    {"dynamic_slice", [](const Inputs& in) { return in.integers("slice_sizes"); }},
    {"dynamic_update_slice", same},
    {"fft", transformed},
    {"gather", [](const Inputs& in) { return gathered(in, in.integers("slice_sizes")); }},
    {"map", same},
    {"optimization_barrier", of_each},
    {"pad",
     [](const Inputs& in) {
       return padded(in.shape(0), in.integers("edge_padding_low"), in.integers("edge_padding_high"),
                     in.integers("interior_padding"));
     }},
    {"reduce", reduced},
    {"reduce_window", reduced_by_windows},
    {"reverse", same},
    {"scatter", of_each},
    {"select", of_second},
    {"select_and_scatter", same},
    {"slice",
     [](const Inputs& in) {
       return sliced_shape(in.shape(0), in.integers("start_indices"), in.integers("limit_indices"),
                           in.integers("strides"));
     }},
    {"sort", of_each},
    {"transpose", transposed},
    {"triangular_solve", of_second},
    {"while", of_each},
};

/// Whether the operands and the results of an operation have one shape, and each element has to do with its own only.
bool is_elementwise(std::string_view base) { return std::ranges::binary_search(elementwise, base); }

/// The shape of a result. Nothing for operations that are not known here, by their names without a version. Throws
/// RunError where an operation is not one that could be.
std::optional<Shape> inferred(std::string_view base, const Inputs& inputs) {
  if (is_elementwise(base)) return same(inputs);
  const auto rule = rules.find(base);
  return rule == rules.end() ? std::nullopt : std::optional(rule->second(inputs));
}

// Each function is written for the types of its arguments and for the sizes among them, which it then has as
// constants. All constants are written where they become known, and those that nothing uses are taken away at the end.

/// What computes its results and does nothing else, beside elementwise operations.
constexpr std::string_view pure[] = {"broadcast_in_dim", "concatenate", "constant", "dynamic_slice", "iota", "pad",
                                     "reshape",          "slice"};

std::string key(std::string_view name, const std::vector<Id>& types, const std::vector<const Known*>& known) {
  std::string text;
  put_number(text, name.size());  // names may have any characters
  text += name;
  for (std::size_t i = 0; i < types.size(); ++i) {
    put_number(text, types[i]);
    put_number(text, known[i] ? known[i]->values.size() + 1 : 0);
    if (known[i])
      for (const std::int64_t value : known[i]->values) put_signed(text, value);
  }
  return text;
}

/// How many calls and regions may be inside of one another: the stack of a thread holds as many.
inline constexpr unsigned max_depth = 256;

/// A module is evaluated as far as its sizes go, and what is not a size is written anew.
class Refiner {
 public:
  /// `size` is that of the module in bytes: a measure for how much may be written.
  Refiner(Tables& tables, const Code& code, std::size_t size)
      : tables_(tables), code_(code), left_((1u << 16) + std::uint64_t{size} / 2) {}

  /// The top of the module for these shapes of the main function's arguments.
  Block refined(std::span<const Shape> arguments) {
    if (code_.top.operations.size() != 1 || code_.top.operations.front().regions.size() != 1 ||
        code_.top.operations.front().regions.front().empty())
      refuse("it has more than one module");
    Operation module = code_.top.operations.front();
    const Region old = std::exchange(module.regions.front(), Region(1));
    Block& top = module.regions.front().front();
    for (const Operation& one : old.front().operations) {
      const auto name = tables_.attribute(one, "sym_name");
      if (name) names_.emplace(tables_.text(*name));
      if (!name || tables_.kind(one.kind).full_name() != "vhlo.func_v1") {
        if (!one.operands.empty() || !one.results.empty() || !one.regions.empty())
          refuse("it has code beside functions");
        top.operations.push_back(one);
        continue;
      }
      Function& function =
          functions_.try_emplace(tables_.text(*name), Function{&one, tables_.text(*name)}).first->second;
      look_at(function, one);
    }
    Function& main = function("main");
    const auto& parameters = main.operation->regions.at(0).front().arguments;
    if (parameters.size() != arguments.size())
      refuse("its main function takes " + std::to_string(parameters.size()) + " arguments, and not " +
             std::to_string(arguments.size()));
    Types types;
    for (std::size_t i = 0; i < arguments.size(); ++i) types.push_back(shaped(parameters[i].type, arguments[i]));
    needed(specialized(main, types, Numbers(types.size())));
    for (Operation& one : written_) top.operations.push_back(std::move(one));
    Block block;
    block.operations.push_back(std::move(module));
    return block;
  }

  Id values() const { return static_cast<Id>(values_.size()); }

 private:
  static constexpr Id none = UINT32_MAX;

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

  void set(Id source, Id value) {
    assert(source - first_ < values_of_.size());
    values_of_[source - first_] = value;
  }

  const Type& type(Id value) { return tables_.type(values_[value].type); }
  const Known* known(Id value) const { return values_[value].known; }

  /// Which values, sizes and callees an operation of a function has.
  void look_at(Function& function, const Operation& operation) {
    const auto note = [&](Id first, std::size_t count) {
      if (count == 0) return;
      function.first = std::min(function.first, first);
      function.behind = std::max(function.behind, first + static_cast<Id>(count));
    };
    note(operation.first_result, operation.results.size());
    for (const Id type : operation.results) function.is_symbolic |= tables_.type(type).is_dynamic;
    if (tables_.kind(operation.kind).base == "call")
      function.callees.push_back(tables_.text(tables_.needed(operation, "callee")));
    for (const Region& region : operation.regions)
      for (const Block& block : region) {
        note(block.first_argument, block.arguments.size());
        for (const auto& argument : block.arguments) function.is_symbolic |= tables_.type(argument.type).is_dynamic;
        for (const Operation& inside : block.operations) look_at(function, inside);
      }
  }

  bool is_symbolic(Function& function, unsigned depth) {
    if (depth > max_depth) refuse("its functions call one another too deeply");
    if (std::exchange(function.is_looked_at, true)) return function.is_symbolic;
    for (const std::string_view callee : function.callees)
      function.is_symbolic |= is_symbolic(this->function(callee), depth + 1);
    return function.is_symbolic;
  }

  Function& function(std::string_view name) {
    const auto found = functions_.find(name);
    if (found == functions_.end() || found->second.operation->regions.size() != 1 ||
        found->second.operation->regions.front().empty())
      refuse("it has no function " + wire::shortened(name));
    return found->second;
  }

  /// With what is known of some arguments, these are constants in the function and no arguments, but for truth values.
  Specialized& specialized(Function& function, const Types& types, const Numbers& known) {
    for (const Known* const one : known)
      if (one) spend(one->values.size() / 16);
    const auto [found, is_new] = specialized_.try_emplace(key(function.name, types, known));
    Specialized& result = found->second;
    if (is_new) specialize(function, types, known, result);
    if (!result.is_done) refuse("it has a function that calls itself");
    return result;
  }

  void specialize(Function& function, const Types& types, const Numbers& known, Specialized& result) {
    const Operation& in = *function.operation;
    const Block& body = in.regions.front().front();
    if (body.arguments.size() != types.size()) refuse("it calls a function with a wrong number of arguments");
    spend(types.size() / 16);
    if (++depth_ > max_depth) refuse("its functions call one another too deeply");

    Operation out;
    out.kind = in.kind, out.location = in.location, out.dictionary = in.dictionary, out.properties = in.properties;
    out.is_isolated = in.is_isolated;
    Block block;
    auto outer_values = std::exchange(values_of_, new_values(function));
    const Id outer_first = std::exchange(first_, function.first);
    Block* const outer_block = std::exchange(block_, &block);

    block.first_argument = static_cast<Id>(values_.size());
    std::vector<bool> is_dropped;
    Types kept;
    for (std::size_t i = 0; i < types.size(); ++i) {
      is_dropped.push_back(known[i] && !known[i]->element.is_boolean());
      if (is_dropped[i]) continue;
      set(body.first_argument + static_cast<Id>(i), static_cast<Id>(values_.size()));
      values_.push_back({types[i], known[i]});
      block.arguments.push_back({types[i], body.arguments[i].location});
      kept.push_back(types[i]);
    }
    for (std::size_t i = 0; i < types.size(); ++i)
      if (is_dropped[i]) set(body.first_argument + static_cast<Id>(i), constant(in.location, types[i], *known[i]));
    for (const Operation& one : body.operations) operation(one);
    if (block.operations.empty() || tables_.kind(block.operations.back().kind).full_name() != "vhlo.return_v1")
      refuse("it has a function without an end");
    sweep(block);
    const Operation& end = block.operations.back();
    result.results = types_of(end.operands);
    for (const Id value : end.operands) result.known.push_back(this->known(value));
    result.is_pure = std::all_of(block.operations.begin(), std::prev(block.operations.end()),
                                 [](const Operation& one) { return one.is_removable; });
    result.is_constant = result.is_pure && std::ranges::all_of(result.known, [](const Known* number) {
                           return number && !number->element.is_boolean();
                         });

    values_of_ = std::move(outer_values);
    first_ = outer_first;
    block_ = outer_block;
    --depth_;

    out.regions.emplace_back().push_back(std::move(block));
    tables_.replace_attribute(out, "function_type",
                              tables_.type_attribute(tables_.function_type(kept, result.results)));
    const std::vector<Id> attributes = tables_.array(tables_.needed(in, "arg_attrs"));
    if (attributes.size() == types.size() && kept.size() < types.size()) {
      std::vector<Id> left;
      for (std::size_t i = 0; i < types.size(); ++i)
        if (!is_dropped[i]) left.push_back(attributes[i]);
      tables_.replace_attribute(out, "arg_attrs", tables_.array_attribute(left));
    }
    result.symbol = tables_.needed(in, "sym_name");
    if (!used_names_.insert(function.name).second) {
      result.symbol = tables_.string_attribute(new_name(function.name));
      tables_.replace_attribute(out, "sym_name", result.symbol);
    }
    result.is_dropped = std::move(is_dropped);
    result.is_done = true;
    result.function = std::move(out);
  }

  /// The symbol of a function, which is written then.
  Id needed(Specialized& specialized) {
    if (specialized.function) written_.push_back(std::move(*specialized.function));
    specialized.function.reset();
    return specialized.symbol;
  }

  std::vector<Id> new_values(const Function& function) {
    const std::size_t count = function.first == none ? 0 : function.behind - function.first;
    spend(count);
    return std::vector<Id>(count, none);
  }

  std::string new_name(std::string_view name) {
    for (std::size_t i = specialized_.size();; ++i) {
      std::string found = std::string(name) + '_' + std::to_string(i);
      if (names_.insert(found).second) return found;
    }
  }

  /// The code of a region whose arguments have these types.
  Block evaluated(const Block& block, const Types& types) {
    spend(types.size() / 16);
    if (++depth_ > max_depth) refuse("its code nests too deeply");
    Block out;
    Block* const outer = std::exchange(block_, &out);
    out.first_argument = static_cast<Id>(values_.size());
    for (std::size_t i = 0; i < types.size(); ++i) {
      set(block.first_argument + static_cast<Id>(i), static_cast<Id>(values_.size()));
      values_.push_back({types[i]});
      out.arguments.push_back({types[i], block.arguments[i].location});
    }
    for (const Operation& one : block.operations) operation(one);
    block_ = outer;
    --depth_;
    return out;
  }

  void operation(const Operation& in) {
    spend(1 + (in.operands.size() + in.results.size()) / 16);
    const Tables::Kind& kind = tables_.kind(in.kind);
    if (!kind.is_vhlo) return finish(in, begun(in));
    if (kind.base == "call") return call(in);
    if (kind.base == "custom_call") return custom_call(in);
    if (kind.base == "composite") return composite(in);
    if (!made_static(in)) finish(in, begun(in));
  }

  void call(const Operation& in) {
    Function& callee = function(tables_.text(tables_.needed(in, "callee")));
    Operation out = begun(in);
    Numbers known;
    for (const Id operand : out.operands) known.push_back(this->known(operand));
    // Where sizes play no part, all calls share one function.
    const bool is_constant = std::ranges::all_of(known, [](const Known* one) { return one != nullptr; });
    if (!is_constant && !is_symbolic(callee, 0)) std::ranges::fill(known, nullptr);
    Specialized& target = specialized(callee, types_of(out.operands), known);
    if (target.results.size() != in.results.size()) refuse("it calls a function with a wrong number of results");
    const auto as_constant = [&](std::size_t i) {
      set(in.first_result + static_cast<Id>(i), constant(in.location, target.results[i], *target.known[i]));
    };
    if (target.is_constant) {
      for (std::size_t i = 0; i < target.results.size(); ++i) as_constant(i);
      return;
    }
    std::vector<Id> kept;
    for (std::size_t i = 0; i < out.operands.size(); ++i)
      if (!target.is_dropped[i]) kept.push_back(out.operands[i]);
    out.operands = std::move(kept);
    out.results = target.results;
    out.is_removable = target.is_pure;
    tables_.replace_attribute(out, "callee", needed(target));
    const Id first = emit(std::move(out));
    set_all(in, first);
    for (std::size_t i = 0; i < target.known.size(); ++i) {
      const Known* const number = target.known[i];
      if (number && number->element.is_boolean())
        values_[first + static_cast<Id>(i)].known = number;
      else if (number)
        as_constant(i);
    }
  }

  void composite(const Operation& in) {
    Operation out = begun(in);
    const Types types = types_of(out.operands);
    Specialized& target =
        specialized(function(tables_.text(tables_.needed(in, "decomposition"))), types, Numbers(types.size()));
    out.results = target.results;
    tables_.replace_attribute(out, "decomposition", needed(target));
    finish(in, std::move(out));
  }

  /// Takes away what nothing uses. What uses a value stands behind it.
  void sweep(Block& block) {
    used_.resize(values_.size());
    for (auto one = block.operations.rbegin(); one != block.operations.rend(); ++one) {
      const auto first = used_.begin() + one->first_result;
      const auto behind = first + static_cast<std::ptrdiff_t>(one->results.size());
      if (one->is_removable && std::find(first, behind, true) == behind) {
        one->operands.clear();
        one->results.clear();
        continue;
      }
      one->is_used = true;
      for (const Id operand : one->operands) used_[operand] = true;
      for (Region& region : one->regions)
        for (Block& inside : region) sweep(inside);
    }
    std::erase_if(block.operations, [](const Operation& one) { return !one.is_used; });
  }

  void spend(std::uint64_t operations = 1) {
    if (operations > left_) refuse("its functions call others over and over with ever new sizes");
    left_ -= operations;
  }

  /// Infers what an operation computes, evaluates its regions, writes it or what it computes, and notes that for the
  /// results of `in`.
  void finish(const Operation& in, Operation out) {
    const Tables::Kind& kind = tables_.kind(out.kind);
    const Types types = types_of(out.operands);
    const bool is_loop = kind.is_vhlo && kind.base == "while";
    for (const Region& region : in.regions) {
      Region& evaluated = out.regions.emplace_back();
      if (region.empty()) continue;
      const Block& block = region.front();
      Types arguments;
      for (const auto& argument : block.arguments) arguments.push_back(argument.type);
      if (is_loop && arguments.size() == types.size()) arguments = types;
      if (std::ranges::any_of(arguments, [&](Id type) { return tables_.type(type).is_dynamic; })) refuse_operation(in);
      evaluated.push_back(this->evaluated(block, arguments));
    }
    if (out.results.empty()) {
      std::vector<const Type*> operands;
      for (const Id type : types) operands.push_back(&tables_.type(type));
      for (std::size_t i = 0; i < in.results.size(); ++i) {
        const Id declared = in.results[i];
        const Type& type = tables_.type(declared);
        if (!type.is_dynamic) {
          out.results.push_back(declared);
          continue;
        }
        if (const auto branch = type_from_branch(kind, out, i)) {
          out.results.push_back(*branch);
          continue;
        }
        const bool is_cast = kind.full_name() == "builtin.unrealized_conversion_cast";
        const bool is_constraint = kind.full_name() == "sdy.sharding_constraint" || kind.full_name() == "sdy.reshard";
        // Constraints between casts are left out: arrays of open sizes have no type of the builtin dialect here.
        if ((is_cast || is_constraint) && out.operands.size() == 1 && in.results.size() == 1 &&
            (!type.is_tensor || is_cast)) {
          if (type.is_tensor && shaped(declared, operands.front()->shape) != types.front()) refuse_operation(in);
          return set(in.first_result, out.operands.front());
        }
        const Inputs inputs{tables_, in, operands, i};
        const auto shape = is_constraint  ? std::optional(inputs.shape(0))
                           : kind.is_vhlo ? inferred(kind.base, inputs)
                                          : std::nullopt;
        if (!shape) refuse_operation(in);
        out.results.push_back(shaped(declared, *shape));
      }
    }
    if (out.results.size() != in.results.size()) refuse_operation(in);
    if (kind.is_vhlo && in.regions.empty())
      out.is_removable |= is_elementwise(kind.base) || std::ranges::find(pure, kind.base) != std::end(pure);
    std::optional<Known> known = kind.is_vhlo && out.results.size() == 1 ? computed(out) : std::nullopt;
    if (!known) {
      const bool is_sum = kind.is_vhlo && kind.base == "add" && out.operands.size() == 2;
      const std::vector<Id> operands = is_sum ? out.operands : std::vector<Id>();
      const Id first = emit(std::move(out));
      set_all(in, first);
      for (std::size_t i = 0; i < operands.size(); ++i)
        if (const Known* const offset = this->known(operands[i]))
          values_[first].summand = operands[1 - i], values_[first].offset = offset;
      return;
    }
    // A constant of truth values is encoded in one way by older readers, and in another one by newer ones.
    if (known->element.is_boolean() || kind.base == "constant") {
      const Id first = emit(std::move(out));
      values_[first].known = keep(std::move(*known));
      set_all(in, first);
      return;
    }
    set(in.first_result, constant(out.location, out.results.front(), std::move(*known)));
  }

  /// The same operation with the operands as they are written.
  Operation begun(const Operation& in) {
    Operation out;
    out.kind = in.kind, out.location = in.location, out.dictionary = in.dictionary, out.properties = in.properties;
    out.is_isolated = in.is_isolated;
    for (const Id operand : in.operands) out.operands.push_back(value(operand));
    return out;
  }

  /// What branches return, they return for the whole.
  std::optional<Id> type_from_branch(const Tables::Kind& kind, const Operation& out, std::size_t result) const {
    if (!kind.is_vhlo || (kind.base != "case" && kind.base != "if")) return std::nullopt;
    if (out.regions.empty() || out.regions.front().empty() || out.regions.front().front().operations.empty())
      return std::nullopt;
    const auto& returned = out.regions.front().front().operations.back().operands;
    return result < returned.size() ? std::optional(values_[returned[result]].type) : std::nullopt;
  }

  Id emit(Operation out) {
    assert(block_);
    spend();
    const Id first = static_cast<Id>(values_.size());
    out.first_result = first;
    for (const Id type : out.results) values_.push_back({type});
    block_->operations.push_back(std::move(out));
    return first;
  }

  /// An operation of VHLO that the module does not have.
  Operation made(std::string_view kind, Id location, std::vector<Id> operands, std::vector<Id> results,
                 Named attributes = {}) {
    Operation one;
    one.kind = tables_.vhlo_kind(kind), one.location = location;
    one.operands = std::move(operands), one.results = std::move(results);
    if (!attributes.empty()) tables_.set_attributes(one, std::move(attributes));
    return one;
  }

  Named of_slice(const Integers& starts, const Integers& limits, const Integers& strides) {
    return {{"limit_indices", tables_.sizes_attribute(limits)},
            {"start_indices", tables_.sizes_attribute(starts)},
            {"strides", tables_.sizes_attribute(strides)}};
  }

  Id constant(Id location, Id type, Known known) {
    Operation out =
        made("constant_v1", location, {}, {type}, {{"value", tables_.tensor_attribute(type, known.values)}});
    out.is_removable = true;
    const Id first = emit(std::move(out));
    values_[first].known = keep(std::move(known));
    return first;
  }

  const Known* keep(Known known) {
    spend(known.values.size() / 16);
    return &kept_.emplace_back(std::move(known));
  }

  /// The integers that an operation computes, where its operands are known.
  std::optional<Known> computed(const Operation& out) {
    const Type& type = tables_.type(out.results.front());
    const Element element = tables_.element(type.element);
    if (!type.is_tensor || !element.is_integer) return std::nullopt;
    const auto count = count_of(type.shape);
    if (!count || *count > static_cast<std::int64_t>(most_integers)) return std::nullopt;
    const std::string_view base = tables_.kind(out.kind).base;
    std::vector<const Known*> operands;
    for (const Id operand : out.operands) {
      operands.push_back(known(operand));
      if (!operands.back()) return std::nullopt;
    }
    std::optional<Integers> values;
    if (base == "constant") {
      values = tables_.integers(tables_.needed(out, "value"));
    } else if (operands.empty()) {
      return std::nullopt;
    } else if (base == "reshape") {
      values = operands[0]->values;
    } else if (base == "compare" && operands.size() == 2) {
      const std::uint64_t direction = tables_.number(tables_.needed(out, "comparison_direction"));
      if (direction <= static_cast<std::uint64_t>(Direction::less))
        values = compared(static_cast<Direction>(direction), *operands[0], *operands[1]);
    } else if (base == "concatenate") {
      const std::int64_t dimension = tables_.integer(tables_.needed(out, "dimension"));
      for (const Known* const operand : operands) size_at(operand->shape, dimension);
      size_at(type.shape, dimension);
      if (std::ranges::all_of(operands, [&](auto* one) { return one->shape.size() == type.shape.size(); }))
        values = concatenated(operands, static_cast<std::size_t>(dimension), type.shape);
    } else if (base == "slice") {
      const Integers starts = tables_.needed_integers(out, "start_indices"),
                     strides = tables_.needed_integers(out, "strides");
      if (sliced_shape(operands[0]->shape, starts, tables_.needed_integers(out, "limit_indices"), strides) ==
          type.shape)
        values = sliced(*operands[0], starts, strides, type.shape);
    } else if (base == "broadcast_in_dim") {
      const Integers dimensions = tables_.needed_integers(out, "broadcast_dimensions");
      for (const std::int64_t dimension : dimensions) size_at(type.shape, dimension);
      if (dimensions.size() == operands[0]->shape.size()) values = broadcast(*operands[0], dimensions, type.shape);
    } else if (base == "gather" && operands.size() == 2) {
      // JAX computes of shapes in this way whether indices are within them.
      const bool is_choice = operands[0]->shape.size() == 1 &&
                             tables_.needed_integers(out, "slice_sizes") == Integers{1} &&
                             tables_.needed_integers(out, "start_index_map") == Integers{0} &&
                             tables_.needed_integers(out, "collapsed_slice_dims") == Integers{0};
      if (is_choice) values = chosen(*operands[0], *operands[1]);
    } else {
      values = refine::computed(base, operands, element);
    }
    if (!values || values->size() != static_cast<std::size_t>(*count)) return std::nullopt;
    return Known{element, type.shape, std::move(*values)};
  }

  Id shaped(Id declared, const Shape& shape) {
    const Type& type = tables_.type(declared);
    if (!type.is_dynamic && (!type.is_tensor || type.shape == shape)) return declared;
    const auto fits = [](std::int64_t open, std::int64_t found) { return open == dynamic_size || open == found; };
    if (!type.is_tensor || !std::ranges::equal(type.shape, shape, fits) || !count_of(shape))
      refuse("one of its arrays has a shape that its type does not allow, or bounds of its size");
    return tables_.tensor_type(type.element, shape);
  }

  Id value(Id source) const {
    const Id at = source - first_;
    if (at >= values_of_.size() || values_of_[at] == none) refuse("it uses a value before it is there");
    return values_of_[at];
  }

  void set_all(const Operation& in, Id first) {
    for (std::size_t i = 0; i < in.results.size(); ++i)
      set(in.first_result + static_cast<Id>(i), first + static_cast<Id>(i));
  }

  Types types_of(std::span<const Id> values) const {
    Types types;
    for (const Id value : values) types.push_back(values_[value].type);
    return types;
  }

  // Operations that take sizes as operands, as the operations that have them as attributes.

  /// Whether an operation was one of these, and is written.
  bool made_static(const Operation& in) {
    const std::string_view base = tables_.kind(in.kind).base;
    if (std::ranges::find(with_sizes, base) == std::end(with_sizes)) return false;
    if (in.operands.empty() || in.results.empty()) refuse_operation(in);  // of a version that is not known
    const auto shaped_as = [&](Operation out, const Shape& shape) {
      out.results = {shaped(in.results.at(0), shape)};
      finish(in, std::move(out));
      return true;
    };
    if (base == "get_dimension_size") {
      const Type& operand = type(value(in.operands.at(0)));
      if (!operand.is_tensor) refuse_operation(in);
      const std::int64_t size = size_at(operand.shape, tables_.integer(tables_.needed(in, "dimension")));
      const Id result = in.results.at(0);
      const Element element = tables_.element(tables_.type(result).element);
      if (!tables_.type(result).shape.empty() || !element.is_integer) refuse_operation(in);
      if (wrapped(size, element) != size)
        refuse("the size of one of its arrays does not fit into the integers of its module");
      set(in.first_result, constant(in.location, result, {element, {}, {size}}));
      return true;
    }
    if (base == "dynamic_broadcast_in_dim")
      return shaped_as(written_as(in, "broadcast_in_dim_v1", {}, 1), sizes(in, 1));
    if (base == "dynamic_reshape") return shaped_as(written_as(in, "reshape_v1", {}, 1), sizes(in, 1));
    if (base == "dynamic_iota") return shaped_as(written_as(in, "iota_v1", {}, 0), sizes(in, 0));
    if (base == "rng") return shaped_as(begun(in), sizes(in, 2));
    if (base == "dynamic_pad") {
      const Integers low = numbers(in, 2), high = numbers(in, 3), interior = numbers(in, 4);
      const Named attributes{{"edge_padding_high", tables_.sizes_attribute(high)},
                             {"edge_padding_low", tables_.sizes_attribute(low)},
                             {"interior_padding", tables_.sizes_attribute(interior)}};
      return shaped_as(written_as(in, "pad_v1", attributes, 2),
                       padded(type(value(in.operands.at(0))).shape, low, high, interior));
    }
    if (base == "dynamic_gather") {
      const bool is_first = tables_.kind(in.kind).name == "dynamic_gather_v1";
      const Integers slices = numbers(in, 2);
      Operation out =
          written_as(in, is_first ? "gather_v1" : "gather_v2", {{"slice_sizes", tables_.sizes_attribute(slices)}}, 2);
      const Types types = types_of(out.operands);
      const Type* const operands[] = {&tables_.type(types[0]), &tables_.type(types[1])};
      return shaped_as(std::move(out), gathered({tables_, in, operands, 0}, slices));
    }
    if (base == "dynamic_conv") {
      const Integers padding = numbers(in, 2);
      const auto pairs = static_cast<std::int64_t>(padding.size() / 2);
      Operation out = written_as(in, "convolution_v1", {{"padding", tables_.sizes_attribute(padding, {pairs, 2})}}, 2);
      const Types types = types_of(out.operands);
      const Type* const operands[] = {&tables_.type(types[0]), &tables_.type(types[1])};
      return shaped_as(std::move(out), convolved({tables_, in, operands, 0}, padding));
    }
    dynamic_slice(in);
    return true;
  }

  /// An operation of another kind in the place of `in`, with these attributes and as many of its attributes as that
  /// kind has, and with the first `operands` of its operands.
  Operation written_as(const Operation& in, std::string_view kind, Named attributes, std::size_t operands) {
    Operation out = begun(in);
    if (out.operands.size() < operands) refuse_operation(in);
    out.operands.resize(operands);
    out.kind = tables_.vhlo_kind(kind);
    if (const auto* const known = tables_.kind(out.kind).attributes)
      for (const std::string_view name : known->attribute_names())
        if (std::ranges::find(attributes, name, &Named::value_type::first) == attributes.end())
          attributes.emplace_back(name, tables_.needed(in, name));
    tables_.set_attributes(out, std::move(attributes));
    return out;
  }

  /// The same, where it is the shape of the result, which may be static anyway.
  Shape sizes(const Operation& in, std::size_t operand) {
    const Type& declared = tables_.type(in.results.at(0));
    return declared.is_tensor && !declared.is_dynamic ? declared.shape : numbers(in, operand);
  }

  /// An operand that has to be known.
  Integers numbers(const Operation& in, std::size_t operand) {
    const Known* const found = operand < in.operands.size() ? known(value(in.operands[operand])) : nullptr;
    if (!found) refuse_operation(in);
    return found->values;
  }

  /// Where only the sizes are known, the limits are computed as the starts and the sizes.
  void dynamic_slice(const Operation& in) {
    if (in.operands.size() != 4) refuse_operation(in);
    const Id operand = value(in.operands[0]), start = value(in.operands[1]), limit = value(in.operands[2]);
    const Shape shape = type(operand).shape;
    const Integers strides = numbers(in, 3);
    if (known(start) && known(limit)) {
      const Integers starts = numbers(in, 1), limits = numbers(in, 2);
      Operation out = written_as(in, "slice_v1", of_slice(starts, limits, strides), 1);
      out.results = {shaped(in.results.at(0), sliced_shape(shape, starts, limits, strides))};
      return finish(in, std::move(out));
    }
    const bool is_dense = std::ranges::all_of(strides, [](std::int64_t stride) { return stride == 1; });
    if (!is_dense || values_[limit].summand != start) refuse_operation(in);
    const Integers sizes = values_[limit].offset->values;
    if (sizes.size() != shape.size() ||
        !std::ranges::equal(sizes, shape, [](auto a, auto b) { return 0 <= a && a <= b; }))
      refuse_operation(in);
    Operation out = written_as(in, "dynamic_slice_v1", {{"slice_sizes", tables_.sizes_attribute(sizes)}}, 1);
    const Id element = type(start).element;
    for (std::int64_t d = 0; d < static_cast<std::int64_t>(sizes.size()); ++d) {
      const Id one = emit(
          made("slice_v1", in.location, {start}, {tables_.tensor_type(element, {1})}, of_slice({d}, {d + 1}, {1})));
      out.operands.push_back(emit(made("reshape_v1", in.location, {one}, {tables_.tensor_type(element, {})})));
    }
    out.results = {shaped(in.results.at(0), sizes)};
    finish(in, std::move(out));
  }

  // Custom calls that stand for operations with open sizes, or have the shapes of their results as operands.

  void custom_call(const Operation& in) {
    const std::string_view target = tables_.text(tables_.needed(in, "call_target_name"));
    if (target == "shape_assertion") return assertion(in);
    if (target == "stablehlo.dynamic_reduce_window") return reduce_window(in);
    if (target == "stablehlo.dynamic_rng_bit_generator") return random_bits(in);
    if (target == "stablehlo.dynamic_top_k") return top_k(in);
    if (target.starts_with("stablehlo.dynamic_")) refuse_operation(in, target);
    if (const auto indices = tables_.attribute(in, "indices_of_shape_operands"))
      return with_shape_operands(in, *indices);
    Operation out = begun(in);
    called_computations(out);
    constexpr std::string_view keep_shapes[] = {"Sharding", "annotate_device_placement", "LayoutConstraint"};
    const bool keeps_shapes = std::ranges::find(keep_shapes, target) != std::end(keep_shapes);
    for (std::size_t i = 0; i < in.results.size(); ++i) {
      const Type& declared = tables_.type(in.results[i]);
      if (!declared.is_dynamic)
        out.results.push_back(in.results[i]);
      else if (keeps_shapes && i < out.operands.size())
        out.results.push_back(shaped(in.results[i], type(out.operands[i]).shape));
      else if (target.starts_with("lapack_") && !out.operands.empty())
        out.results.push_back(shaped(in.results[i], of_batch(in, declared.shape, type(out.operands.back()).shape)));
      else
        refuse_operation(in, target);
    }
    finish(in, std::move(out));
  }

  /// Of calls of LAPACK by JAX before 0.4.31: what is open is the size of a batch of matrices, the last operand.
  Shape of_batch(const Operation& in, Shape declared, const Shape& matrices) const {
    for (std::size_t d = 0; d < declared.size(); ++d) {
      if (declared[d] != dynamic_size) continue;
      if (d + 2 >= matrices.size()) refuse_operation(in, "LAPACK");
      declared[d] = matrices[d];
    }
    return declared;
  }

  /// What is asserted holds for these sizes, or an error says so: it is nothing that is computed.
  void assertion(const Operation& in) {
    const Integers holds = numbers(in, 0);
    Integers shown;
    for (std::size_t i = 1; i < in.operands.size(); ++i) {
      const Integers number = numbers(in, i);
      shown.push_back(number.empty() ? 0 : number.front());
    }
    if (!holds.empty() && holds.front() != 0) return;
    const std::string message = filled(tables_.text(tables_.needed(in, "error_message")), shown);
    throw RunError(RunError::Reason::argument, message.empty()
                                                   ? "the shapes of the arguments violate an assertion in the module"
                                                   : in_own_words(message));
  }

  void with_shape_operands(const Operation& in, Id indices) {
    const auto places = tables_.integers(indices);
    if (!places || places->size() != in.results.size()) refuse_operation(in);
    Operation out = begun(in);
    for (std::size_t i = 0; i < places->size(); ++i) {
      const std::int64_t place = (*places)[i];
      if (place < 0 || static_cast<std::size_t>(place) >= in.operands.size()) refuse_operation(in);
      out.results.push_back(shaped(in.results[i], numbers(in, static_cast<std::size_t>(place))));
    }
    std::vector<bool> is_shape(in.operands.size());
    for (const std::int64_t place : *places) is_shape[static_cast<std::size_t>(place)] = true;
    const std::vector<Id> layouts = tables_.array(tables_.needed(in, "operand_layouts"));
    std::vector<Id> operands, left;
    for (std::size_t i = 0; i < out.operands.size(); ++i) {
      if (is_shape[i]) continue;
      operands.push_back(out.operands[i]);
      if (i < layouts.size()) left.push_back(layouts[i]);
    }
    out.operands = std::move(operands);
    if (left.size() < layouts.size()) tables_.replace_attribute(out, "operand_layouts", tables_.array_attribute(left));
    tables_.remove_attribute(out, "indices_of_shape_operands");
    called_computations(out);
    finish(in, std::move(out));
  }

  /// Functions that an operation names are written as they are.
  void called_computations(Operation& out) {
    const auto names = tables_.attribute(out, "called_computations");
    if (!names) return;
    std::vector<Id> symbols;
    for (const Id name : tables_.array(*names)) {
      Function& called = function(tables_.text(name));
      Types types;
      for (const auto& argument : called.operation->regions.front().front().arguments) {
        if (tables_.type(argument.type).is_dynamic) refuse_operation(out, tables_.text(name));
        types.push_back(argument.type);
      }
      symbols.push_back(needed(specialized(called, types, Numbers(types.size()))));
    }
    if (!symbols.empty()) tables_.replace_attribute(out, "called_computations", tables_.array_attribute(symbols));
  }

  /// The function that it calls becomes the region of the operation.
  void reduce_window(const Operation& in) {
    const std::vector<Id> names = tables_.array(tables_.needed(in, "called_computations"));
    if (names.size() != 1 || in.operands.size() < 7 || in.operands.size() % 2 == 0) refuse_operation(in);
    const std::size_t arrays = (in.operands.size() - 5) / 2, numbers_at = 2 * arrays;
    if (in.results.size() != arrays) refuse_operation(in);
    const Integers window = numbers(in, numbers_at), strides = numbers(in, numbers_at + 1),
                   base_dilations = numbers(in, numbers_at + 2), window_dilations = numbers(in, numbers_at + 3),
                   padding = numbers(in, numbers_at + 4);
    const auto pairs = static_cast<std::int64_t>(padding.size() / 2);
    Operation out = written_as(in, "reduce_window_v1",
                               {{"base_dilations", tables_.sizes_attribute(base_dilations)},
                                {"padding", tables_.sizes_attribute(padding, {pairs, 2})},
                                {"window_dilations", tables_.sizes_attribute(window_dilations)},
                                {"window_dimensions", tables_.sizes_attribute(window)},
                                {"window_strides", tables_.sizes_attribute(strides)}},
                               numbers_at);
    for (std::size_t i = 0; i < arrays; ++i)
      out.results.push_back(shaped(in.results[i], windowed(type(out.operands[i]).shape, window, strides, base_dilations,
                                                           window_dilations, padding)));
    out.regions.emplace_back().push_back(body(in, function(tables_.text(names.front()))));
    finish(in, std::move(out));
  }

  void random_bits(const Operation& in) {
    if (in.operands.size() != 2 || in.results.size() != 2) refuse_operation(in);
    const Named attributes{{"rng_algorithm", tables_.needed(in, "rng_algorithm")}};
    Operation out = written_as(in, "rng_bit_generator_v1", attributes, 1);
    out.results = {shaped(in.results[0], type(out.operands[0]).shape), shaped(in.results[1], numbers(in, 1))};
    finish(in, std::move(out));
  }

  /// The largest elements of the last dimension and where they are: what is in front after a stable sort.
  void top_k(const Operation& in) {
    if (in.operands.size() != 2 || in.results.size() != 2) refuse_operation(in);
    const Id operand = value(in.operands[0]), operand_type = values_[operand].type;
    const Integers k = numbers(in, 1);
    const Type& array = tables_.type(operand_type);
    const Shape shape = array.shape;
    const Id element = array.element;
    if (!array.is_tensor || shape.empty() || k.size() != 1 || k.front() < 0 || k.front() > shape.back())
      refuse_operation(in);
    const auto last = static_cast<std::int64_t>(shape.size()) - 1;
    const Id index_type = tables_.tensor_type(tables_.scalar_element(vhlo::type::si32), shape);

    const Id last_dimension = tables_.integer_attribute(last);
    const Id iota = emit(made("iota_v1", in.location, {}, {index_type}, {{"iota_dimension", last_dimension}}));
    Operation sort = made("sort_v1", in.location, {operand, iota}, {operand_type, index_type},
                          {{"dimension", last_dimension}, {"is_stable", tables_.boolean_attribute(true)}});
    sort.regions.emplace_back().push_back(is_greater(in.location, element));
    const Id sorted = emit(std::move(sort));

    Shape limits = shape;
    limits.back() = k.front();
    const Named attributes = of_slice(Integers(shape.size(), 0), limits, Integers(shape.size(), 1));
    for (Id i = 0; i < 2; ++i)
      set(in.first_result + i,
          emit(made("slice_v1", in.location, {sorted + i}, {shaped(in.results[i], limits)}, attributes)));
  }

  /// The code of a function of static types, as a region.
  Block body(const Operation& in, Function& function) {
    const Block& block = function.operation->regions.front().front();
    Types types;
    for (const auto& argument : block.arguments) types.push_back(argument.type);
    if (std::ranges::any_of(types, [&](Id type) { return tables_.type(type).is_dynamic; })) refuse_operation(in);
    auto outer_values = std::exchange(values_of_, new_values(function));
    const Id outer_first = std::exchange(first_, function.first);
    Block found = evaluated(block, types);
    values_of_ = std::move(outer_values);
    first_ = outer_first;
    return found;
  }

  /// Compares two elements for a sort of elements with their indices.
  Block is_greater(Id location, Id element) {
    const Id scalar = tables_.tensor_type(element, {}),
             index = tables_.tensor_type(tables_.scalar_element(vhlo::type::si32), {}),
             truth = tables_.tensor_type(tables_.scalar_element(vhlo::type::boolean), {});
    const Element numbers = tables_.element(element);
    const auto how = !numbers.is_integer ? vhlo::total_order
                     : numbers.is_signed ? vhlo::signed_integers
                                         : vhlo::unsigned_integers;
    Block block;
    block.first_argument = static_cast<Id>(values_.size());
    for (const Id type : {scalar, scalar, index, index}) {
      values_.push_back({type});
      block.arguments.push_back({type, location});
    }
    Block* const outer = std::exchange(block_, &block);
    const auto greater = static_cast<std::uint64_t>(Direction::greater);
    const Id compared =
        emit(made("compare_v1", location, {block.first_argument, block.first_argument + 1}, {truth},
                  {{"compare_type", tables_.enum_attribute(vhlo::attribute::comparison, how)},
                   {"comparison_direction", tables_.enum_attribute(vhlo::attribute::direction, greater)}}));
    emit(made("return_v1", location, {compared}, {}));
    block_ = outer;
    return block;
  }

  [[noreturn]] void refuse_operation(const Operation& in, std::string_view target = {}) const {
    std::string name = tables_.kind(in.kind).full_name();
    if (!target.empty()) name += " of " + wire::shortened(target);
    refuse("the sizes that its operation " + name + " computes are not known here");
  }

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

}  // namespace

std::optional<std::vector<std::uint8_t>> with_shapes(std::span<const std::uint8_t> module, const wire::Path& where,
                                                     std::span<const Shape> arguments,
                                                     const std::function<void(Tables&, Block&, Id)>& change) {
  Parts parts(module, where);
  if (!parts.tables().has_dynamic_types()) return std::nullopt;
  const Code code = parts.code();
  Refiner refiner(parts.tables(), code, module.size());
  Block top = refiner.refined(arguments);
  if (change) change(parts.tables(), top, refiner.values());
  return parts.written(top);
}

}  // namespace jaxexp::runtime::refine

// Each function is written for the types of its arguments and for the sizes among them, which it then has as
// constants. All constants are written where they become known, and those that nothing uses are taken away at the end.
#include "runtime/refine/refiner.h"

#include <algorithm>
#include <utility>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime::refine {
namespace {

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

}  // namespace

Refiner::Refiner(Tables& tables, const Code& code, std::size_t size)
    : tables_(tables), code_(code), left_((1u << 16) + std::uint64_t{size} / 2) {}

void Refiner::spend(std::uint64_t operations) {
  if (operations > left_) refuse("its functions call others over and over with ever new sizes");
  left_ -= operations;
}

std::vector<Id> Refiner::new_values(const Function& function) {
  const std::size_t count = function.first == none ? 0 : function.behind - function.first;
  spend(count);
  return std::vector<Id>(count, none);
}

Block Refiner::refined(std::span<const Shape> arguments) {
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
      if (!one.operands.empty() || !one.results.empty() || !one.regions.empty()) refuse("it has code beside functions");
      top.operations.push_back(one);
      continue;
    }
    Function& function = functions_.try_emplace(tables_.text(*name), Function{&one, tables_.text(*name)}).first->second;
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

/// Which values, sizes and callees an operation of a function has.
void Refiner::look_at(Function& function, const Operation& operation) {
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

bool Refiner::is_symbolic(Function& function, unsigned depth) {
  if (depth > max_depth) refuse("its functions call one another too deeply");
  if (std::exchange(function.is_looked_at, true)) return function.is_symbolic;
  for (const std::string_view callee : function.callees)
    function.is_symbolic |= is_symbolic(this->function(callee), depth + 1);
  return function.is_symbolic;
}

Refiner::Function& Refiner::function(std::string_view name) {
  const auto found = functions_.find(name);
  if (found == functions_.end() || found->second.operation->regions.size() != 1 ||
      found->second.operation->regions.front().empty())
    refuse("it has no function " + wire::shortened(name));
  return found->second;
}

std::string Refiner::new_name(std::string_view name) {
  for (std::size_t i = specialized_.size();; ++i) {
    std::string found = std::string(name) + '_' + std::to_string(i);
    if (names_.insert(found).second) return found;
  }
}

/// With what is known of some arguments, these are constants in the function and no arguments, but for truth values.
Refiner::Specialized& Refiner::specialized(Function& function, const Types& types, const Numbers& known) {
  for (const Known* const one : known)
    if (one) spend(one->values.size() / 16);
  const auto [found, is_new] = specialized_.try_emplace(key(function.name, types, known));
  Specialized& result = found->second;
  if (is_new) specialize(function, types, known, result);
  if (!result.is_done) refuse("it has a function that calls itself");
  return result;
}

Id Refiner::needed(Specialized& specialized) {
  if (specialized.function) written_.push_back(std::move(*specialized.function));
  specialized.function.reset();
  return specialized.symbol;
}

void Refiner::specialize(Function& function, const Types& types, const Numbers& known, Specialized& result) {
  const Operation& in = *function.operation;
  const Block& body = in.regions.front().front();
  if (body.arguments.size() != types.size()) refuse("it calls a function with another number of arguments");
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
  tables_.replace_attribute(out, "function_type", tables_.type_attribute(tables_.function_type(kept, result.results)));
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

/// The code of a region whose arguments have these types.
Block Refiner::evaluated(const Block& block, const Types& types) {
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

void Refiner::operation(const Operation& in) {
  spend(1 + (in.operands.size() + in.results.size()) / 16);
  const Tables::Kind& kind = tables_.kind(in.kind);
  if (!kind.is_vhlo) return finish(in, begun(in));
  if (kind.base == "call") return call(in);
  if (kind.base == "custom_call") return custom_call(in);
  if (kind.base == "composite") return composite(in);
  if (!made_static(in)) finish(in, begun(in));
}

/// The same operation with the operands as they are written.
Operation Refiner::begun(const Operation& in) {
  Operation out;
  out.kind = in.kind, out.location = in.location, out.dictionary = in.dictionary, out.properties = in.properties;
  out.is_isolated = in.is_isolated;
  for (const Id operand : in.operands) out.operands.push_back(value(operand));
  return out;
}

void Refiner::call(const Operation& in) {
  Function& callee = function(tables_.text(tables_.needed(in, "callee")));
  Operation out = begun(in);
  Numbers known;
  for (const Id operand : out.operands) known.push_back(this->known(operand));
  // Where sizes play no part, all calls share one function.
  const bool is_constant = std::ranges::all_of(known, [](const Known* one) { return one != nullptr; });
  if (!is_constant && !is_symbolic(callee, 0)) std::ranges::fill(known, nullptr);
  Specialized& target = specialized(callee, types_of(out.operands), known);
  if (target.results.size() != in.results.size()) refuse("it calls a function with another number of results");
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

void Refiner::composite(const Operation& in) {
  Operation out = begun(in);
  const Types types = types_of(out.operands);
  Specialized& target =
      specialized(function(tables_.text(tables_.needed(in, "decomposition"))), types, Numbers(types.size()));
  out.results = target.results;
  tables_.replace_attribute(out, "decomposition", needed(target));
  finish(in, std::move(out));
}

void Refiner::finish(const Operation& in, Operation out) {
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
      const bool is_constraint = kind.full_name() == "sdy.sharding_constraint" || kind.full_name() == "sdy.reshard";
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

/// What branches return, they return for the whole.
std::optional<Id> Refiner::type_from_branch(const Tables::Kind& kind, const Operation& out, std::size_t result) const {
  if (!kind.is_vhlo || (kind.base != "case" && kind.base != "if")) return std::nullopt;
  if (out.regions.empty() || out.regions.front().empty() || out.regions.front().front().operations.empty())
    return std::nullopt;
  const auto& returned = out.regions.front().front().operations.back().operands;
  return result < returned.size() ? std::optional(values_[returned[result]].type) : std::nullopt;
}

/// The integers that an operation computes, where its operands are known.
std::optional<Known> Refiner::computed(const Operation& out) {
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
    if (sliced_shape(operands[0]->shape, starts, tables_.needed_integers(out, "limit_indices"), strides) == type.shape)
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

const Known* Refiner::keep(Known known) {
  spend(known.values.size() / 16);
  return &kept_.emplace_back(std::move(known));
}

Id Refiner::emit(Operation out) {
  spend();
  const Id first = static_cast<Id>(values_.size());
  out.first_result = first;
  for (const Id type : out.results) values_.push_back({type});
  block_->operations.push_back(std::move(out));
  return first;
}

Id Refiner::constant(Id location, Id type, Known known) {
  Operation out;
  out.kind = tables_.vhlo_kind("constant_v1");
  out.location = location;
  out.is_removable = true;
  out.results = {type};
  tables_.set_attributes(out, {{"value", tables_.tensor_attribute(type, known.values)}});
  const Id first = emit(std::move(out));
  values_[first].known = keep(std::move(known));
  return first;
}

/// The type of a tensor with this shape.
Id Refiner::shaped(Id declared, const Shape& shape) {
  const Type& type = tables_.type(declared);
  if (!type.is_dynamic && (!type.is_tensor || type.shape == shape)) return declared;
  const auto fits = [](std::int64_t open, std::int64_t found) { return open == dynamic_size || open == found; };
  if (!type.is_tensor || !std::ranges::equal(type.shape, shape, fits) || !count_of(shape))
    refuse("one of its arrays has another shape than its type says, or bounds of its size");
  return tables_.tensor_type(type.element, shape);
}

Id Refiner::value(Id source) const {
  const Id at = source - first_;
  if (at >= values_of_.size() || values_of_[at] == none) refuse("it uses a value before it is there");
  return values_of_[at];
}

void Refiner::set_all(const Operation& in, Id first) {
  for (std::size_t i = 0; i < in.results.size(); ++i)
    set(in.first_result + static_cast<Id>(i), first + static_cast<Id>(i));
}

Refiner::Types Refiner::types_of(std::span<const Id> values) const {
  Types types;
  for (const Id value : values) types.push_back(values_[value].type);
  return types;
}

/// Takes away what nothing uses. What uses a value stands behind it.
void Refiner::sweep(Block& block) {
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

}  // namespace jaxexp::runtime::refine

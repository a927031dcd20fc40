// What older releases of XLA and StableHLO do not take, or take wrong. Each operation is looked at once, and what
// stands in front of it is written before it.
#include "runtime/adapt/adapt.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "jaxexp/run_error.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::adapt {
namespace {

using refine::Block, refine::Id, refine::Integers, refine::MeshAxes, refine::Operation, refine::Shape, refine::Tables;
namespace vhlo = refine::vhlo;

constexpr std::string_view with_groups[] = {"all_gather", "all_reduce", "all_to_all", "collective_broadcast",
                                            "reduce_scatter"};

constexpr std::int64_t limit = std::int64_t{1} << 24;  // of places in a dimension of a convolution

using Mesh = std::vector<std::pair<std::string_view, std::int64_t>>;

/// Groups of devices that are said by axes of a mesh, as numbers.
class Groups {
 public:
  Groups(Tables& tables, const Block& top) : tables_(tables) {
    for (const Operation& module : top.operations)
      for (const auto& region : module.regions)
        for (const Block& block : region)
          for (const Operation& one : block.operations) look_at(one);
  }

  bool change(Operation& operation) {
    const Id said = tables_.needed(operation, "replica_groups");
    const auto [known, is_new] = numbers_of_.try_emplace(said);
    if (is_new) known->second = numbers_of(said);
    if (known->second) tables_.replace_attribute(operation, "replica_groups", *known->second);
    return known->second.has_value();
  }

 private:
  /// Axes of a mesh are said in words of StableHLO, too, which an attribute of the mesh has.
  void look_at(const Operation& operation) {
    if (tables_.kind(operation.kind).full_name() != "sdy.mesh") return;
    const auto name = tables_.symbol(operation);
    const auto said = tables_.attribute(operation, "stablehlo.mesh");
    const auto axes = said ? tables_.in_dictionary(*said, "axes") : std::nullopt;
    if (!name || !axes || tables_.in_dictionary(*said, "device_ids")) return;
    Mesh mesh;
    for (const Id axis : tables_.array(*axes)) {
      const auto called = tables_.in_dictionary(axis, "name"), size = tables_.in_dictionary(axis, "size");
      if (!called || !size) return;
      mesh.emplace_back(tables_.text(*called), tables_.integer(*size));
    }
    meshes_.emplace(*name, std::move(mesh));
  }

  /// Groups of devices by their numbers, where they are said by axes of a mesh that is known.
  std::optional<Id> numbers_of(Id said) {
    const auto axes = tables_.mesh_axes(said);
    const auto mesh = axes ? meshes_.find(axes->mesh) : meshes_.end();
    if (mesh == meshes_.end()) return std::nullopt;
    const auto groups = groups_of(mesh->second, axes->axes);
    if (groups.empty()) return std::nullopt;
    Integers devices;
    for (const auto& [others, group] : groups) devices.insert(devices.end(), group.begin(), group.end());
    const auto count = static_cast<std::int64_t>(groups.size());
    return tables_.sizes_attribute(devices, {count, static_cast<std::int64_t>(devices.size()) / count});
  }

  /// The devices of each group in their order, by where the group is on the other axes. None where an axis is not
  /// known.
  std::map<Integers, Integers> groups_of(const Mesh& mesh, const std::vector<MeshAxes::Axis>& axes) {
    constexpr std::int64_t of_each_device = 8;  // beside its numbers
    const auto each = static_cast<std::int64_t>(mesh.size() + axes.size()) + of_each_device;
    const std::int64_t most = numbers_left_ / each;
    std::int64_t count = 1;
    for (const auto& [name, size] : mesh) {
      if (size < 1 || size > most / count) return {};
      count *= size;
    }
    numbers_left_ -= count * each;
    std::map<std::string_view, std::size_t> places_in_mesh;
    for (std::size_t i = 0; i < mesh.size(); ++i) places_in_mesh.emplace(mesh[i].first, i);
    std::vector<std::size_t> places_of_axes;
    for (const MeshAxes::Axis& axis : axes) {
      const auto found = places_in_mesh.find(axis.name);
      if (found == places_in_mesh.end()) return {};
      places_of_axes.push_back(found->second);
    }
    std::map<Integers, std::vector<std::pair<Integers, std::int64_t>>> places;
    for (std::int64_t device = 0; device < count; ++device) {
      Integers others(mesh.size()), place;
      std::int64_t left = device;
      for (std::size_t i = mesh.size(); i-- > 0; left /= mesh[i].second) others[i] = left % mesh[i].second;
      for (std::size_t a = 0; a < axes.size(); ++a) {
        const std::int64_t whole = mesh[places_of_axes[a]].second;
        std::int64_t& at = others[places_of_axes[a]];
        const auto [before, size] = axes[a].part.value_or(std::pair<std::int64_t, std::int64_t>(1, whole));
        if (before < 1 || size < 1 || before > whole || size > whole / before) return {};
        const std::int64_t behind = whole / (before * size), index = at / behind % size;
        place.push_back(index);
        at -= index * behind;
      }
      places[others].emplace_back(std::move(place), device);
    }
    std::map<Integers, Integers> groups;
    for (auto& [others, group] : places) {
      std::ranges::sort(group);
      for (const auto& [place, device] : group) groups[others].push_back(device);
    }
    return groups;
  }

  Tables& tables_;
  std::map<std::string_view, Mesh> meshes_;
  std::map<Id, std::optional<Id>> numbers_of_;  // what says groups, by what said them
  std::int64_t numbers_left_ = 1 << 22;         // that are made of devices, for all groups together
};

class Walk {
 public:
  Walk(Tables& tables, const Block& top, Id values, const Changes& changes)
      : tables_(tables),
        changes_(changes),
        guards_constants_(changes.constants && !has_open_sizes(top)),
        types_(values),
        are_constant_(values),
        next_(values),
        groups_(tables, top) {}

  void block(Block& block) {
    assert(block.first_argument + block.arguments.size() <= types_.size());
    for (std::size_t i = 0; i < block.arguments.size(); ++i) types_[block.first_argument + i] = block.arguments[i].type;
    std::vector<Operation> before;
    before.swap(block.operations);
    for (Operation& one : before) {
      assert(one.first_result + one.results.size() <= types_.size());
      for (std::size_t i = 0; i < one.results.size(); ++i) types_[one.first_result + i] = one.results[i];
      for (auto& region : one.regions)
        for (Block& inside : region) this->block(inside);
      if (const Tables::Kind& kind = tables_.kind(one.kind); kind.is_vhlo) {
        note(kind.base, one);
        try {
          change(kind, one, block.operations);
        } catch (const RunError&) {  // of a form that is not known here
          if (kind.base == "convolution") throw;
        }
      }
      block.operations.push_back(std::move(one));
    }
  }

  bool is_changed() const { return is_changed_; }

 private:
  bool has_open_sizes(const Block& block) const {
    const auto is_open = [&](Id type) { return tables_.type(type).is_dynamic; };
    return std::ranges::any_of(block.arguments, is_open, &Block::Argument::type) ||
           std::ranges::any_of(block.operations, [&](const Operation& one) {
             return std::ranges::any_of(one.results, is_open) || std::ranges::any_of(one.regions, [&](auto& region) {
                      return std::ranges::any_of(region, [&](const Block& inside) { return has_open_sizes(inside); });
                    });
           });
  }

  /// Whether its results are computed of constants only.
  void note(std::string_view base, const Operation& one) {
    const bool is_constant = base == "constant" || (!one.operands.empty() && are_constant(one));
    for (std::size_t i = 0; i < one.results.size(); ++i) are_constant_[one.first_result + i] = is_constant;
  }

  void change(const Tables::Kind& kind, Operation& one, std::vector<Operation>& out) {
    const std::string_view base = kind.base;
    if (changes_.comparisons && base == "compare") type_comparison(one);
    if (guards_constants_ && (base == "divide" || base == "remainder") && divides_integers(one))
      divide(base == "divide", one, out);
    if (guards_constants_ && (base == "maximum" || base == "minimum") && are_constant(one)) hide_operand(one, out);
    if (changes_.indices && base == "scatter") widen(one, out);
    if (changes_.sorts && base == "sort") make_stable(one);
    if (changes_.convolutions && base == "convolution") confine(one, out);
    if (base == "custom_call" && (changes_.without_layouts || changes_.typed)) change_call(one);
    if (!changes_.older_words) return;
    if (kind.name == "custom_call_v2") say_as_first_version(one);
    if (kind.name == "composite_v2" && one.regions.empty()) {
      one.kind = tables_.vhlo_kind("composite_v1");  // which has the same attributes, and no regions
      is_changed_ = true;
    }
    if (std::ranges::find(with_groups, base) != std::end(with_groups)) is_changed_ |= groups_.change(one);
  }

  void replace(Operation& one, std::string_view name, Id value) {
    tables_.replace_attribute(one, name, value);
    is_changed_ = true;
  }

  /// An operation at the place of another one.
  Operation made(std::string_view kind, const Operation& at, std::vector<Id> operands, Id result,
                 refine::Named attributes = {}) {
    is_changed_ = true;
    Operation one;
    one.kind = tables_.vhlo_kind(kind), one.location = at.location;
    one.operands = std::move(operands), one.results = {result}, one.first_result = next_++;
    tables_.set_attributes(one, std::move(attributes));
    return one;
  }

  refine::Element element_of(Id type) const { return tables_.element(tables_.type(type).element); }

  /// How integers are compared may be left to their type, which older releases of XLA take for unsigned.
  void type_comparison(Operation& one) {
    constexpr std::string_view how = "compare_type";
    const refine::Element element = element_of(types_[one.operands.at(0)]);
    if (!element.is_integer || tables_.number(tables_.needed(one, how)) != vhlo::no_comparison) return;
    const auto as = element.is_signed && !element.is_boolean() ? vhlo::signed_integers : vhlo::unsigned_integers;
    replace(one, how, tables_.enum_attribute(vhlo::attribute::comparison, as));
  }

  bool are_constant(const Operation& one) const {
    return std::ranges::all_of(one.operands, [&](Id value) { return are_constant_[value]; });
  }

  bool divides_integers(const Operation& one) const {
    const refine::Element element = element_of(one.results.at(0));
    return element.is_integer && !element.is_boolean();
  }
  void divide(bool is_quotient, Operation& one, std::vector<Operation>& out);

  /// Of constants, the same releases lose NaN in maxima and minima.
  void hide_operand(Operation& one, std::vector<Operation>& out) {
    if (element_of(one.results.at(0)).is_integer) return;
    Id& operand = one.operands.front();
    out.push_back(made("optimization_barrier_v1", one, {operand}, one.results.front()));
    operand = out.back().first_result;
  }

  /// XLA computes how far a scatter may reach in the type of its indices. Releases before JAX 0.12 take a window for
  /// one that is outside of an array that is longer than the type can say, and write nothing. The indices are behind
  /// the arrays, and in front of as many updates.
  void widen(Operation& scatter, std::vector<Operation>& out) {
    constexpr unsigned wide = 32;
    Id& indices = scatter.operands.at(scatter.operands.size() / 2);
    const refine::Element element = element_of(types_[indices]);
    if (!element.is_integer || element.bits == 0 || element.bits >= wide) return;
    const Shape shape = tables_.type(types_[indices]).shape;
    const Id type = tables_.tensor_type(tables_.scalar_element(vhlo::type::si32), shape);
    out.push_back(made("convert_v1", scatter, {indices}, type));
    indices = out.back().first_result;
  }

  /// XLA sorts with the C++ library, which leaves the array where a comparator is no order and the sort need not be
  /// stable. A stable sort stays within, and is one of those that an unstable sort may be.
  void make_stable(Operation& sort) {
    constexpr std::string_view is_stable = "is_stable";
    if (!tables_.boolean(tables_.needed(sort, is_stable))) replace(sort, is_stable, tables_.boolean_attribute(true));
  }

  void change_call(Operation& call) {
    const std::string_view target = tables_.text(tables_.needed(call, "call_target_name"));
    // Where a call computes an array without elements, some releases of XLA divide by 0 when they compile a copy of it
    // in another layout. Such an array needs none, and what else the calls compute then is zeros, or an argument.
    const auto is_empty = [&](Id type) {
      const refine::Type& one = tables_.type(type);
      return one.is_tensor && !one.is_dynamic && std::ranges::find(one.shape, 0) != one.shape.end();
    };
    if (changes_.without_layouts && std::ranges::any_of(call.results, is_empty) && changes_.without_layouts(target))
      for (const std::string_view layouts : {"operand_layouts", "result_layouts"})
        replace(call, layouts, tables_.array_attribute({}));
    constexpr std::uint64_t typed = 4;
    constexpr std::string_view version = "api_version";
    if (changes_.typed && changes_.typed(target) && tables_.number(tables_.needed(call, version)) != typed)
      replace(call, version, tables_.enum_attribute(vhlo::attribute::api_version, typed));
  }

  void say_as_first_version(Operation& call) {
    if (!call.properties || !tables_.array(tables_.needed(call, "result_tilings")).empty()) return;
    refine::Named attributes;
    for (const std::string_view name : wire::known_operation("custom_call_v1")->attribute_names())
      attributes.emplace_back(name, tables_.needed(call, name));
    // What belongs to no property stays: custom calls of GPUs and of Shardy have such attributes.
    const auto others = call.dictionary;
    tables_.set_attributes(call, std::move(attributes));
    call.dictionary = others;
    call.kind = tables_.vhlo_kind("custom_call_v1");
    is_changed_ = true;
  }
  void confine(Operation& one, std::vector<Operation>& out);

  /// What is behind `starts`.
  Operation slice(const Operation& of, const Shape& sizes, const Integers& starts) {
    Shape left = sizes;
    for (std::size_t d = 0; d < left.size(); ++d) left[d] -= starts[d];
    const Id operand = of.operands.front(), type = tables_.tensor_type(tables_.type(types_[operand]).element, left);
    return made("slice_v1", of, {operand}, type,
                {{"limit_indices", tables_.sizes_attribute(sizes)},
                 {"start_indices", tables_.sizes_attribute(starts)},
                 {"strides", tables_.sizes_attribute(Integers(sizes.size(), 1))}});
  }

  const Shape& shape(const Operation& one, std::size_t operand) {
    const refine::Type& type = tables_.type(types_[one.operands.at(operand)]);
    if (!type.is_tensor) refuse(one, "sizes with bounds");
    return type.shape;
  }

  /// How many an array of this size has in a dimension, with those between its elements.
  std::int64_t places(const Operation& one, std::int64_t size, std::int64_t distance) const {
    if (size == 0) return 0;
    refuse_many(one, size);
    const std::int64_t count = (size - 1) * distance + 1;
    refuse_many(one, count);
    return count;
  }

  void refuse_many(const Operation& one, std::int64_t places) const {
    if (places >= limit) refuse(one, std::to_string(places) + " places in a dimension");
  }

  [[noreturn]] void refuse(const Operation& one, const std::string& what) const {
    const std::string place = tables_.place_of(one.location);
    refine::refuse("its operation convolution" + (place.empty() ? "" : " at " + place) + " has " + what +
                   ": on CPUs, XLA reads outside of its arrays for 2^24 places or more in a dimension, for strides, "
                   "distances and paddings as large, and for paddings that take away more than there is");
  }

  Tables& tables_;
  const Changes& changes_;
  const bool guards_constants_;
  std::vector<Id> types_;           // of the module's values
  std::vector<bool> are_constant_;  // these values
  Id next_;                         // value
  Groups groups_;
  bool is_changed_ = false;
};

/// Older releases of XLA compute operations of constants when they read a module. They end the process then where
/// integers are divided by 0. On the device, the quotient of such a division has all bits set, as StableHLO's
/// specification says, and the remainder is the dividend. So the division is by 1 where it would be by 0, and what it
/// becomes is the choice between its result and the right one.
void Walk::divide(bool is_quotient, Operation& one, std::vector<Operation>& out) {
  const Id type = one.results.front(), dividend = one.operands.at(0), divisor = one.operands.at(1);
  const refine::Type& array = tables_.type(type);
  const Id truths = tables_.tensor_type(tables_.scalar_element(vhlo::type::boolean), array.shape);
  const auto how = tables_.element(array.element).is_signed ? vhlo::signed_integers : vhlo::unsigned_integers;
  const auto add = [&](std::string_view kind, Id result, std::vector<Id> operands, refine::Named attributes = {}) {
    out.push_back(made(kind, one, std::move(operands), result, std::move(attributes)));
    return out.back().first_result;
  };
  const auto constant = [&](std::int64_t number) {
    return add("constant_v1", type, {}, {{"value", tables_.tensor_attribute(type, {{number}})}});
  };
  const Id zeros = constant(0), ones = constant(1);
  const auto equal = static_cast<std::uint64_t>(refine::Direction::equal);
  const Id is_zero = add("compare_v1", truths, {divisor, zeros},
                         {{"compare_type", tables_.enum_attribute(vhlo::attribute::comparison, how)},
                          {"comparison_direction", tables_.enum_attribute(vhlo::attribute::direction, equal)}});
  const Id of_zero = is_quotient ? add("subtract_v1", type, {zeros, ones}) : dividend;
  Operation division = one;
  division.operands = {dividend, add("select_v1", type, {is_zero, ones, divisor})};
  const Id computed = division.first_result = next_++;
  out.push_back(std::move(division));
  Operation choice = made("select_v1", one, {is_zero, of_zero, computed}, type);
  choice.first_result = one.first_result;
  one = std::move(choice);
}

/// XLA's code for CPUs counts the places of a convolution in 32-bit floats, which have no odd numbers above 2^24.
/// Before JAX 0.12, it does not know where it is if a padding takes away in front and adds behind, and what other
/// operations add, it makes a part of the padding. So what a padding takes away in front, a slice takes.
void Walk::confine(Operation& one, std::vector<Operation>& out) {
  const auto integers = [&](const char* name) { return tables_.needed_integers(one, name); };
  Integers padding = integers("padding");
  for (const auto& [what, numbers] :
       {std::pair("strides", integers("window_strides")), std::pair("padding", padding),
        std::pair("distances", integers("lhs_dilation")), std::pair("distances", integers("rhs_dilation"))})
    for (const std::int64_t number : numbers)
      if (number <= -limit || limit <= number) refuse(one, std::string(what) + " of " + std::to_string(number));
  const Shape input = shape(one, 0), kernel = shape(one, 1);
  Integers starts(input.size(), 0);
  const Integers dimensions = integers("input_spatial_dimensions"), distances = integers("lhs_dilation");
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const auto d = static_cast<std::size_t>(dimensions[i]);
    if (input[d] == refine::dynamic_size) continue;
    std::int64_t& low = padding[2 * i];
    const std::int64_t count = places(one, input[d], distances[i]);
    refuse_many(one, count + low + padding[2 * i + 1]);
    if (low >= 0 || distances[i] < 1) continue;
    if (count + low < 0)
      refuse(one, "padding that takes away " + std::to_string(-low) + " places of " + std::to_string(count));
    starts[d] = (distances[i] - 1 - low) / distances[i];
    low = count + low == 0 ? 0 : starts[d] * distances[i] + low;
  }
  const Integers of_kernel = integers("kernel_spatial_dimensions"), kernel_distances = integers("rhs_dilation");
  // A kernel may have more dimensions here than its input; StableHLO refuses that.
  for (std::size_t i = 0; i < std::min(of_kernel.size(), kernel_distances.size()); ++i)
    if (const std::int64_t size = kernel[static_cast<std::size_t>(of_kernel[i])]; size != refine::dynamic_size)
      places(one, size, kernel_distances[i]);
  const bool is_open = tables_.type(types_[one.operands.front()]).is_dynamic;  // until a call says its sizes
  if (is_open || std::ranges::all_of(starts, [](std::int64_t start) { return start == 0; })) return;
  out.push_back(slice(one, input, starts));
  one.operands.front() = out.back().first_result;
  const auto pairs = static_cast<std::int64_t>(dimensions.size());
  tables_.replace_attribute(one, "padding", tables_.sizes_attribute(padding, {pairs, 2}));
}

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

/// The function "main"; null where there is none.
const Operation* main_of(const Tables& tables, const Block& top) {
  for (const Operation& module : top.operations)
    for (const auto& region : module.regions)
      for (const Block& block : region)
        for (const Operation& one : block.operations)
          if (tables.kind(one.kind).full_name() == "vhlo.func_v1" &&
              tables.text(tables.needed(one, "sym_name")) == "main")
            return &one;
  return nullptr;
}

}  // namespace

bool may_have_older_words(std::string_view operation) {
  constexpr std::string_view dialect = "vhlo.";
  if (!operation.starts_with(dialect)) return false;
  operation.remove_prefix(dialect.size());
  return operation == "custom_call_v2" || operation == "composite_v2" ||
         std::ranges::any_of(with_groups, [&](std::string_view base) { return operation.starts_with(base); });
}

bool change(Tables& tables, Block& top, Id values, const Changes& changes) {
  Walk walk(tables, top, values, changes);
  walk.block(top);
  return walk.is_changed();
}

std::optional<std::vector<std::uint8_t>> changed(std::span<const std::uint8_t> module, const wire::Path& where,
                                                 const Changes& changes) {
  refine::Parts parts(module, where);
  refine::Code code = parts.code();
  if (!change(parts.tables(), code.top, code.values, changes)) return std::nullopt;
  return parts.written(code.top);
}

/// Tokens say in which order a function's effects happen. Between calls, the caller of the module sees to the order.
std::vector<std::uint8_t> without_tokens(std::span<const std::uint8_t> module, const wire::Path& where,
                                         std::size_t effects) {
  refine::Parts parts(module, where);
  Tables& tables = parts.tables();
  const refine::Code code = parts.code();
  Block top = code.top;
  auto* const main = const_cast<Operation*>(main_of(tables, top));  // of `top`, which is not constant
  if (!main || main->regions.size() != 1 || main->regions.front().size() != 1)
    refine::refuse("it has no main function");
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

/// XLA lays out arguments and results as attributes say, and here all of them are row-major. A string may be shared,
/// and has its size in front of it, so the name of such an attribute becomes one of the same size that nobody reads.
std::optional<std::vector<std::uint8_t>> without_layouts(std::span<const std::uint8_t> module,
                                                         const wire::Path& where) {
  constexpr std::string_view of_layouts[] = {
      "mhlo.layout_mode", "mhlo.xla_entry_computation_parameter_layouts", "mhlo.xla_entry_computation_parameter_tiles",
      "mhlo.xla_entry_computation_result_layout", "mhlo.xla_entry_computation_result_tiles"};
  wire::Sections sections(module, where);
  sections.find();
  const wire::Names names(sections);
  std::optional<std::vector<std::uint8_t>> changed;
  for (const std::string_view name : names.strings) {
    if (std::ranges::find(of_layouts, name) == std::end(of_layouts)) continue;
    if (!changed) changed.emplace(module.begin(), module.end());
    const auto* const last = reinterpret_cast<const std::uint8_t*>(name.data()) + name.size() - 1;
    (*changed)[static_cast<std::size_t>(last - module.data())] = '_';
  }
  return changed;
}

/// Only the heads of functions are read: their code takes much longer.
MainTypes types_of_main(std::span<const std::uint8_t> module, const wire::Path& where) {
  wire::Sections sections(module, where);
  sections.find();
  refine::Tables tables(sections);
  const Block heads = refine::read_heads(sections.needed(wire::Section::code), sections.version());
  const Operation* const main = main_of(tables, heads);
  if (!main) throw wire::Error(where, "a module with the function 'main'", "a module without it");
  const auto [arguments, results] = tables.function(tables.needed(*main, "function_type"));
  MainTypes found;
  for (const auto& [types, values] : {std::pair(&arguments, &found.arguments), std::pair(&results, &found.results)})
    for (const Id id : *types) {
      const refine::Type& one = tables.type(id);
      values->push_back({one.is_tensor ? tables.dtype(one.element) : std::string_view(), one.shape});
    }
  return found;
}

std::string ValueType::str() const {
  if (dtype.empty()) return "something else";
  std::string text(dtype);
  text += '[';
  for (std::size_t i = 0; i < sizes.size(); ++i)
    (text += i > 0 ? "," : "") += sizes[i] == refine::dynamic_size ? "?" : std::to_string(sizes[i]);
  return text + ']';
}

}  // namespace jaxexp::runtime::adapt

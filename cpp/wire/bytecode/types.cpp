#include "wire/bytecode/types.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace jaxexp::wire {
namespace {

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

}  // namespace

TypeRule type_rule(std::string_view name) {
  const auto* const found =
      std::ranges::find(rules, name.substr(0, name.rfind("_v")), [](auto& rule) { return rule.first; });
  return found == rules.end() ? TypeRule::none : found->second;
}

bool is_cast(const AttributesAndTypes& tables, std::uint32_t operand, std::uint32_t result) {
  if (tables.value_kind(operand) != tables.value_kind(result)) return false;
  if (tables.value_kind(operand) != 'x') return true;
  const unsigned element = tables.element(operand);
  return element != unknown && element == tables.element(result) &&
         std::ranges::equal(tables.sizes(operand), tables.sizes(result));
}

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

bool is_unchecked_call(const AttributesAndTypes& tables, std::string_view target,
                       std::span<const std::uint32_t> operands, std::span<const std::uint32_t> results) {
  const TypeRule rule = target.starts_with("stablehlo.") ? type_rule(target) : TypeRule::none;
  if (rule == TypeRule::none) return false;
  const auto is_array = [&](std::uint32_t type) { return tables.value_kind(type) == 'x'; };
  const std::size_t arrays = rule == TypeRule::reduction ? 2 * results.size() : 1;  // behind them are sizes
  return results.empty() || operands.size() < arrays || !std::ranges::all_of(operands, is_array) ||
         !std::ranges::all_of(results, is_array) || is_unchecked(tables, rule, {}, operands.first(arrays), results);
}

}  // namespace jaxexp::wire

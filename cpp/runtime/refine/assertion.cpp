// The counterpart in Python is _kernel/call/constraints.py.
#include "runtime/refine/assertion.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "wire/base/error.h"

namespace jaxexp::runtime::refine {
namespace {

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

}  // namespace

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

}  // namespace jaxexp::runtime::refine

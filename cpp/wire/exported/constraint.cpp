// JAX's grammar, with spaces anywhere:
//
//   constraint = side ("==" | ">=" | "<=") side
//   side       = sum | "(" side ")"
//   sum        = ["-" | "+"] term {("+" | "-") term}
//   term       = factor ["^" number] {"*" factor ["^" number]}
//   factor     = name | operation "(" sum "," sum ")" | ["-"] number
#include "wire/exported/constraint.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

class ConstraintParser {
 public:
  /// `whole` is for errors.
  ConstraintParser(std::string_view text, std::string_view whole, const Path& path)
      : text_(text), whole_(whole), path_(path) {}

  Expression side() {
    std::size_t open = 0;
    while (skip('(')) ++open;
    Expression expression = sum(0);
    for (; open > 0; --open) need(')');
    skip_spaces();
    if (at_ != text_.size()) refuse();
    return expression;
  }

 private:
  Expression sum(std::size_t level) {
    if (level > max_dimension_depth)
      refuse("a constraint of at most " + std::to_string(max_dimension_depth) + " nested operations");
    Expression expression;
    bool negative = skip('-');
    if (!negative) skip('+');
    do {
      expression.terms.push_back(term(level));
      if (negative) negate(expression.terms.back());
      if (skip('+'))
        negative = false;
      else if (skip('-'))
        negative = true;
      else
        return expression;
    } while (true);
  }

  Term term(std::size_t level) {
    Term term;
    do {
      if (skip('-')) negate(term), need_digit();
      skip_spaces();
      if (at_ < text_.size() && is_digit(text_[at_])) {
        const std::int64_t value = number();
        for (std::int64_t left = exponent(); left > 0; --left) multiply(term, value);
        continue;
      }
      Factor factor = this->factor(level);
      const std::int64_t power = exponent();
      if (power == 0) continue;
      factor.exponent = static_cast<std::uint32_t>(power);
      if (is_constant_extremum(factor))
        for (std::int64_t left = power; left > 0; --left) multiply(term, value_of(factor));
      else
        term.factors.push_back(std::move(factor));
    } while (skip('*'));
    return term;
  }

  Factor factor(std::size_t level) {
    const std::size_t start = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    if (start == at_) refuse();
    Factor factor;
    factor.name = text_.substr(start, at_ - start);
    factor.operation = operation_of(factor.name);
    if (factor.operation == Operation::none || factor.operation == Operation::non_negative) {
      factor.operation = Operation::none;
      return factor;
    }
    need('(');
    factor.operands.push_back(sum(level + 1));
    need(',');
    factor.operands.push_back(sum(level + 1));
    need(')');
    return factor;
  }

  /// JAX computes the larger or smaller one of two numbers.
  static bool is_constant_extremum(const Factor& factor) {
    const bool is_extremum = factor.operation == Operation::max || factor.operation == Operation::min;
    return is_extremum && std::ranges::all_of(factor.operands, [](const Expression& e) { return e.is_constant(); });
  }
  static std::int64_t value_of(const Factor& extremum) {
    const std::int64_t left = extremum.operands[0].terms.front().coefficient,
                       right = extremum.operands[1].terms.front().coefficient;
    return extremum.operation == Operation::max ? std::max(left, right) : std::min(left, right);
  }

  std::int64_t exponent() {
    if (!skip('^')) return 1;
    need_digit();
    const std::int64_t value = number();
    if (value > max_dimension_exponent)
      refuse("a constraint with powers of at most " + std::to_string(max_dimension_exponent));
    return value;
  }

  std::int64_t number() {
    std::int64_t value = 0;
    const char* const end = text_.data() + text_.size();
    const auto [rest, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc{}) refuse(too_large);
    at_ = static_cast<std::size_t>(rest - text_.data());
    return value;
  }

  void multiply(Term& term, std::int64_t value) const {
    // Never the smallest number: its negative is none.
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    const std::int64_t c = term.coefficient;
    if (c != 0 && value != 0 && std::abs(value) > largest / std::abs(c)) refuse(too_large);
    term.coefficient = c * value;
  }

  static void negate(Term& term) { term.coefficient = -term.coefficient; }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool skip(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void need(char c) {
    if (!skip(c)) refuse();
  }
  void need_digit() {
    skip_spaces();
    if (at_ == text_.size() || !is_digit(text_[at_])) refuse();
  }

  static constexpr const char* too_large = "a constraint whose numbers fit into 63 bits";

  [[noreturn]] void refuse(const std::string& expected = "a constraint such as mod(b, 8) == 0 or b <= 2*c") const {
    throw Error(path_, expected, "'" + shortened(whole_) + "'");
  }

  std::string_view text_, whole_;
  const Path& path_;
  std::size_t at_ = 0;
};

}  // namespace

Constraint parse_constraint(std::string_view text, const Path& path) {
  if (text.size() > max_constraint_length)
    throw Error(path, "a constraint of at most " + std::to_string(max_constraint_length) + " characters",
                std::to_string(text.size()));
  for (const std::string_view comparison : {"==", ">=", "<="}) {
    const std::size_t at = text.find(comparison);
    if (at == text.npos) continue;
    Expression left = ConstraintParser(text.substr(0, at), text, path).side();
    Expression right = ConstraintParser(text.substr(at + comparison.size()), text, path).side();
    if (comparison == "<=") std::swap(left, right);
    return {comparison == "==", std::move(left), std::move(right)};
  }
  throw Error(path, "a constraint with ==, >= or <=", "'" + shortened(text) + "'");
}

}  // namespace jaxexp::wire

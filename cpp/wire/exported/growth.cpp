// Costs were measured with JAX 0.12: a step is about two microseconds.
#include "wire/exported/growth.h"

#include <algorithm>
#include <bit>

namespace jaxexp::wire {
namespace {

constexpr std::uint64_t steps_of_operation = 4;

std::uint64_t bits_of(std::int64_t number) {
  return std::bit_width(static_cast<std::uint64_t>(number < 0 ? -number : number));
}

std::uint64_t levels(std::uint64_t count) { return std::bit_width(count); }

}  // namespace

void Growth::dimension(const Expression& expression, const Path& path) {
  if (substitutes())
    sum(expression, path);
  else
    in_order(expression, path);
}

void Growth::constraint(const Constraint& constraint, const Path& path) {
  const Size left = sum(constraint.left, path), right = sum(constraint.right, path);
  done({left.terms + right.terms, left.factors + right.factors, std::max(left.bits, right.bits) + 1,
        left.changes || right.changes},
       path);
}

/// JAX puts the right side in the place of the left one; and for mod(a, 8) == 0, a in the place of 8*floordiv(a, 8).
void Growth::substitute(const Constraint& equality, const Size& by, const Path& path) {
  const auto grow = [](Size& size, const Size& other) {
    size.terms = std::max({size.terms, other.terms, std::uint64_t{1}});
    size.factors = std::max({size.factors, other.factors, std::uint64_t{1}});
    size.bits = std::max({size.bits, other.bits, std::uint64_t{1}});
    size.changes = true;
  };
  for (const Term& term : equality.left.terms) {
    const bool is_variable = term.factors.size() == 1 && term.factors.front().operation == Operation::none &&
                             term.factors.front().exponent == 1;
    const bool is_new = is_variable ? !variables_.contains(term.factors.front().name) : is_new_quotient(equality);
    if (!is_variable && !is_new) has_other_operations_ = true;
    // What an earlier equality makes of this side may be another variable.
    if (substitutes() && !is_new) has_aliases_ = true;
    if (is_variable) {
      grow(variables_[std::string(term.factors.front().name)], by);
    } else {
      grow(operations_, by);
      for (const Factor& factor : term.factors)
        for (const Expression& operand : factor.operands)
          grow(operations_, is_new ? size_as_written(operand) : sum(operand, path));
      grow(substituted_, operations_);
    }
    grow(substituted_, by);
  }
}

/// Of mod(a + 2*b, 8), or of 8*floordiv(a + 2*b, 8) == a + 2*b, which JAX adds to it: whether nothing that was
/// substituted so far is in the left side, or equals it. Many of these say that many sizes are multiples of numbers.
bool Growth::is_new_quotient(const Constraint& equality) {
  const Term& term = equality.left.terms.front();
  if (has_aliases_ || has_other_operations_ || equality.left.terms.size() != 1 || term.factors.size() != 1)
    return false;
  Factor factor = term.factors.front();
  const bool is_mod = factor.operation == Operation::mod;
  if ((!is_mod && factor.operation != Operation::floordiv) || factor.exponent != 1) return false;
  const Expression &dividend = factor.operands[0], &divisor = factor.operands[1];
  if (!divisor.is_constant() || term.coefficient != (is_mod ? 1 : divisor.terms.front().coefficient)) return false;
  if (!is_mod && canonical(equality.right) != canonical(dividend)) return false;
  std::set<std::string_view> names;  // no two terms are of one variable, so a text stands for an expression
  for (const Term& part : dividend.terms) {
    const bool is_constant = part.factors.empty();
    if (part.coefficient == 0 || part.factors.size() > 1) return false;
    if (!is_constant && (part.factors.front().operation != Operation::none || part.factors.front().exponent != 1))
      return false;
    const std::string_view name = is_constant ? std::string_view() : part.factors.front().name;
    if (!names.insert(name).second || variables_.contains(name)) return false;
  }
  const auto insert = [&](std::string_view name) {
    factor.name = name;
    return quotients_.insert(canonical(Expression{{Term{1, {factor}}}})).second;
  };
  const bool is_new = insert(factor.name);
  insert("floordiv");
  return is_new;
}

/// Without substitutions: terms are made, and sorted.
void Growth::in_order(const Expression& expression, const Path& path) {
  std::uint64_t factors = 0;
  for (const Term& term : expression.terms) {
    factors += 1 + term.factors.size();
    for (const Factor& factor : term.factors)
      for (const Expression& operand : factor.operands) in_order(operand, path);
  }
  const std::uint64_t terms = expression.terms.size();
  spend(2 + factors + terms * levels(terms), path);
}

/// Where nothing is substituted in a sum of variables.
Growth::Size Growth::size_as_written(const Expression& sum) {
  Size size{sum.terms.size(), sum.terms.size(), 1, false};
  for (const Term& term : sum.terms) size.bits = std::max(size.bits, bits_of(term.coefficient));
  return size;
}

Growth::Size Growth::sum(const Expression& expression, const Path& path) {
  Size total;
  for (const Term& one : expression.terms) {
    const Size size = term(one, path);
    // Halves are added first, so each term is moved as often as there are levels.
    spend((size.terms + size.factors) * levels(expression.terms.size()), path);
    total = done({total.terms + size.terms, total.factors + size.factors, std::max(total.bits, size.bits) + 1,
                  total.changes || size.changes},
                 path);
  }
  return total;
}

Growth::Size Growth::term(const Term& term, const Path& path) {
  Size total{1, 1, bits_of(term.coefficient), false};
  for (const Factor& one : term.factors) {
    const Size size = factor(one, path);
    for (std::uint32_t i = 0; i < one.exponent; ++i) total = product(total, size, path);
  }
  return total;
}

Growth::Size Growth::factor(const Factor& factor, const Path& path) {
  Size size{1, 1, 1, false};
  if (factor.operation == Operation::none) {
    if (const auto known = variables_.find(factor.name); known != variables_.end())
      size = known->second;
    else if (has_aliases_)
      size = substituted_;
  } else {
    for (const Expression& operand : factor.operands) {
      const Size inner = sum(operand, path);
      size.factors += inner.terms + inner.factors;
    }
    size = {std::max(size.terms, operations_.terms), size.factors + operations_.factors,
            std::max(size.bits, operations_.bits), operations_.changes};
  }
  spend(steps_of_operation + size.terms + size.factors / 4, path);
  return size;
}

Growth::Size Growth::product(const Size& a, const Size& b, const Path& path) {
  spend(a.terms * b.terms, path);
  return done({a.terms * b.terms, a.factors * b.terms + b.factors * a.terms, a.bits + b.bits,
               a.changes || b.changes || operations_.changes},
              path);
}

Growth::Size Growth::done(Size size, const Path& path) {
  if (size.changes) {
    size.terms += substituted_.terms;
    size.factors += substituted_.factors;
    size.bits += substituted_.bits;
  }
  constexpr std::uint64_t bits_of_step = 256;
  spend(steps_of_operation + size.terms + size.factors / 4 + size.terms * (size.bits / bits_of_step), path);
  return size;
}

void Growth::spend(std::uint64_t steps, const Path& path) {
  if (steps > left_)
    throw Error(path, "symbolic dimensions and constraints that JAX makes in " + std::to_string(most_) + " steps",
                "more");
  left_ -= steps;
}

}  // namespace jaxexp::wire

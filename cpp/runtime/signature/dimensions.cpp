// An expression is looked at again only when one of its variables has become known.
#include "runtime/signature/dimensions.h"

#include <algorithm>
#include <charconv>

#include "jaxexp/run_error.h"

namespace jaxexp::runtime {
namespace {

using wire::Expression;
using wire::Factor;
using wire::Operation;
using wire::Term;
using Shared = std::shared_ptr<const Expression>;

Checked evaluate(const Expression& expression, const Variables& variables);

Checked apply(Operation operation, Checked a, Checked b) {
  if (!a || !b) return std::nullopt;
  switch (operation) {
    case Operation::floordiv: return floor_divide(a, b);
    case Operation::mod: return add(a, multiply(multiply(floor_divide(a, b), b), -1));
    case Operation::max:
    case Operation::non_negative: return std::max(a, b);
    case Operation::min: return std::min(a, b);
    case Operation::none: break;
  }
  return std::nullopt;
}

Checked evaluate(const Factor& factor, const Variables& variables) {
  if (factor.operation == Operation::none) {
    const auto found = variables.find(factor.name);
    return found == variables.end() ? std::nullopt : power(found->second, factor.exponent);
  }
  const Checked first = evaluate(factor.operands.front(), variables);
  const bool has_one = factor.operation == Operation::non_negative;  // the greater one of it and 0
  const Checked second = has_one ? Checked(0) : evaluate(factor.operands.back(), variables);
  return power(apply(factor.operation, first, second), factor.exponent);
}

Checked evaluate(const Term& term, const Variables& variables) {
  Checked product = term.coefficient;
  for (const Factor& factor : term.factors) product = multiply(product, evaluate(factor, variables));
  return product;
}

Checked evaluate(const Expression& expression, const Variables& variables) {
  Checked sum = 0;
  for (const Term& term : expression.terms) sum = add(sum, evaluate(term, variables));
  return sum;
}

void collect(const Expression& expression, std::set<std::string_view>& names) {
  for (const Term& term : expression.terms) {
    for (const Factor& factor : term.factors) {
      if (factor.operation == Operation::none) names.insert(factor.name);
      for (const Expression& operand : factor.operands) collect(operand, names);
    }
  }
}

/// The value that an expression's one unknown variable has to have for it to be `size`; nothing where it is not linear.
Checked solve_linear(const Expression& expression, std::string_view unknown, std::int64_t size,
                     const Variables& variables) {
  Checked rest = 0, slope = 0;
  for (const Term& term : expression.terms) {
    Checked value = evaluate(term, variables);
    Checked* sum = &rest;
    if (!value) {  // then the unknown is in it, or it does not fit into 64 bits
      Term without{term.coefficient, {}};
      for (const Factor& factor : term.factors)
        if (factor.name != unknown || factor.operation != Operation::none || factor.exponent != 1)
          without.factors.push_back(factor);
      if (without.factors.size() + 1 != term.factors.size()) return std::nullopt;
      value = evaluate(without, variables);
      sum = &slope;
    }
    *sum = add(*sum, value);
  }
  const Checked difference = add(size, multiply(rest, -1)), quotient = floor_divide(difference, slope);
  return quotient && multiply(quotient, slope) == difference ? quotient : std::nullopt;
}

[[noreturn]] void refuse(const std::string& message) { throw RunError(RunError::Reason::argument, message); }

/// The equations that have variables, and which of them wait for which variable.
class Solver {
 public:
  explicit Solver(const std::vector<Equation>& equations) : equations_(equations), unknowns_(equations.size()) {
    for (std::size_t i = 0; i < equations.size(); ++i) {
      if (equations[i].dimension->is_constant()) continue;
      collect(expression(i), unknowns_[i]);
      for (const std::string_view name : unknowns_[i]) waiting_[name].push_back(i);
      if (unknowns_[i].size() == 1) ready_.push_back(i);
    }
  }

  Variables variables() {
    for (std::size_t next = 0; next < ready_.size(); ++next) {
      const std::size_t i = ready_[next];
      if (unknowns_[i].size() != 1) continue;  // it was solved meanwhile, by another
      const std::string_view name = *unknowns_[i].begin();
      if (const Checked value = solve_linear(expression(i), name, equations_[i].size, variables_)) learn(name, *value);
    }
    for (const auto& [name, where] : waiting_)
      if (!variables_.contains(name)) {
        const Equation& equation = equations_[where.front()];
        refuse(equation.place + " must have size " + std::string(equation.dimension->text) + ", found size " +
               std::to_string(equation.size) + ": the shapes of the arguments give no '" + std::string(name) + "'");
      }
    return variables_;
  }

 private:
  const Expression& expression(std::size_t i) const { return *std::get<Shared>(equations_[i].dimension->value); }

  void learn(std::string_view name, std::int64_t value) {
    variables_.emplace(name, value);
    for (const std::size_t i : waiting_[name]) {
      unknowns_[i].erase(name);
      if (unknowns_[i].size() == 1) ready_.push_back(i);
    }
  }

  const std::vector<Equation>& equations_;
  std::vector<std::set<std::string_view>> unknowns_;
  std::map<std::string_view, std::vector<std::size_t>> waiting_;
  std::vector<std::size_t> ready_;
  Variables variables_;
};

}  // namespace

Dimension::Dimension(std::string_view text, Expressions& known) : text(text) {
  if (!wire::is_size(text)) {
    auto& expression = known[text];
    if (!expression) expression = std::make_shared<const Expression>(wire::parse_dimension(text, {}));
    value = expression;
    return;
  }
  std::int64_t size = 0;
  std::from_chars(text.data(), text.data() + text.size(), size);
  value = size;
}

Checked Dimension::evaluate(const Variables& variables) const {
  return is_constant() ? Checked(constant()) : runtime::evaluate(*std::get<Shared>(value), variables);
}

std::set<std::string_view> variables_in(const Expressions& expressions) {
  std::set<std::string_view> names;
  for (const auto& [text, expression] : expressions) collect(*expression, names);
  return names;
}

std::string str(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables)
    (((text += text.empty() ? "" : ",") += name) += '=') += std::to_string(value);
  return text;
}

Variables solve(const std::vector<Equation>& equations) {
  const Variables variables = Solver(equations).variables();
  for (const auto& [name, value] : variables)
    if (value < 1)
      refuse("the arguments' shapes make the dimension variable '" + std::string(name) + "' " + std::to_string(value) +
             ", which has to be at least 1");
  for (const Equation& equation : equations) {
    const Checked size = equation.dimension->evaluate(variables);
    if (size == equation.size) continue;
    std::string values;
    for (const auto& [name, value] : variables)
      (values += values.empty() ? ", where " : ", ") += std::string(name) + " = " + std::to_string(value);
    refuse(equation.place + " must have size " + std::string(equation.dimension->text) + ", found size " +
           std::to_string(equation.size) + values);
  }
  return variables;
}

}  // namespace jaxexp::runtime

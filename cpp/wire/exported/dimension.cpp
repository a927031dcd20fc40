// The grammar of printed dimensions:
//
//   sum      = ["- "] term {(" + " | " - ") term}
//   term     = number | [number "*"] factor {"*" factor}      before 0.4.26 a number may be negative: "a + -1*b"
//   factor   = (name | operation "(" sum {", " sum} ")") ["^" number]
//
// JAX's own parser takes more (any spaces, repeated terms, constants that can be folded), simplifies while it parses,
// and for nested maxima takes time that is exponential in the text's length.
#include "wire/exported/dimension.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "wire/exported/limits.h"

namespace jaxexp::wire {
namespace {

constexpr std::pair<std::string_view, Operation> operations[] = {{"floordiv", Operation::floordiv},
                                                                 {"mod", Operation::mod},
                                                                 {"max", Operation::max},
                                                                 {"min", Operation::min},
                                                                 {"non_negative", Operation::non_negative}};

class Parser {
 public:
  Parser(std::string_view text, const Path& path) : text_(text), path_(path) {}

  Expression dimension() {
    if (text_.size() > max_dimension_length)
      throw Error(path_, "a dimension of at most " + std::to_string(max_dimension_length) + " characters",
                  std::to_string(text_.size()));
    if (text_.empty()) throw Error(path_, "a dimension", "an empty string");
    Expression whole = sum(0);
    if (at_ != text_.size()) refuse();
    if (whole.is_constant() && whole.terms.front().coefficient < 0)
      throw Error(path_, "a dimension that is not negative", quoted());
    if (whole.is_constant()) refuse();  // a size, in a form that is not printed
    return whole;
  }

 private:
  Expression sum(std::size_t level) {
    if (level > max_dimension_depth)
      throw Error(path_, "a dimension of at most " + std::to_string(max_dimension_depth) + " nested operations",
                  "more");
    Expression expression;
    std::vector<std::string_view> texts;  // of the terms, without their coefficients
    bool negative = skip("- ");
    do {
      auto [term, factors] = this->term(negative, level);
      expression.terms.push_back(std::move(term));
      texts.push_back(factors);
      if (skip(" + "))
        negative = false;
      else if (skip(" - "))
        negative = true;
      else
        break;
    } while (true);
    if (has_twins(texts)) throw Error(path_, "a dimension whose terms differ", quoted());
    // JAX prints no terms that are zero. An operand that is zero is printed as "0".
    if (expression.terms.size() > 1 &&
        std::ranges::any_of(expression.terms, [](const Term& t) { return t.coefficient == 0; }))
      refuse();
    return expression;
  }

  std::pair<Term, std::string_view> term(bool negative, std::size_t level) {
    Term term;
    const bool number_comes = at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '-');
    if (number_comes) {
      if (negative && text_[at_] == '-') refuse();
      term.coefficient = number();
      if (!skip("*")) {
        if (negative && term.coefficient == 0) refuse();
        if (negative) term.coefficient = -term.coefficient;
        return {std::move(term), {}};
      }
      if (term.coefficient == 0 || term.coefficient == 1) {
        // Some releases print "-1*a" and some "- a". None prints "1*a" or "- 1*a".
        refuse();
      }
    }
    const std::size_t start = at_;
    std::vector<std::string_view> texts;
    do {
      const std::size_t factor_start = at_;
      term.factors.push_back(factor(level));
      texts.push_back(text_.substr(factor_start, at_ - factor_start));
      if (term.factors.back().exponent > 1) texts.back() = texts.back().substr(0, texts.back().rfind('^'));
    } while (skip("*"));
    if (has_twins(texts)) throw Error(path_, "a dimension whose terms have factors that differ", quoted());
    if (negative) term.coefficient = -term.coefficient;
    return {std::move(term), text_.substr(start, at_ - start)};
  }

  Factor factor(std::size_t level) {
    const std::size_t start = at_;
    if (at_ == text_.size() || !is_letter(text_[at_])) refuse();
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    Factor factor;
    factor.name = text_.substr(start, at_ - start);
    const Operation known = operation_of(factor.name);
    if (skip("(")) {
      if (known == Operation::none) refuse();
      factor.operation = known;
      operands(factor, level);
    } else if (factor.name == "_" || (known != Operation::none && known != Operation::non_negative)) {
      refuse();  // no variable can have this name
    }
    if (skip("^")) {
      const std::int64_t exponent = at_ < text_.size() && is_digit(text_[at_]) ? number() : 0;
      if (exponent < 2) refuse();
      if (exponent > max_dimension_exponent)
        throw Error(path_, "a dimension with powers of at most " + std::to_string(max_dimension_exponent), quoted());
      factor.exponent = static_cast<std::uint32_t>(exponent);
    }
    return factor;
  }

  void operands(Factor& factor, std::size_t level) {
    const std::size_t count = factor.operation == Operation::non_negative ? 1 : 2;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0 && !skip(", ")) refuse();
      factor.operands.push_back(sum(level + 1));
    }
    if (!skip(")")) refuse();
    if (std::ranges::all_of(factor.operands, [](const Expression& e) { return e.is_constant(); })) refuse();
    const Expression& divisor = factor.operands.back();
    const bool divides = factor.operation == Operation::floordiv || factor.operation == Operation::mod;
    if (divides && divisor.is_constant() && divisor.terms.front().coefficient == 0)
      throw Error(path_, "a dimension without a division by zero", quoted());
  }

  std::int64_t number() {
    const char* const begin = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    const char* const digits = begin + (*begin == '-');
    if (digits == end || !is_digit(*digits)) refuse();
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(begin, end, value);
    if (error != std::errc{} || value == std::numeric_limits<std::int64_t>::min())
      throw Error(path_, "a dimension whose numbers fit into 63 bits", quoted());
    if (*digits == '0' && (rest - digits > 1 || digits != begin)) refuse();  // 007, -0
    at_ += static_cast<std::size_t>(rest - begin);
    return value;
  }

  static bool has_twins(std::vector<std::string_view>& texts) {
    if (texts.size() < 2) return false;
    std::ranges::sort(texts);
    return std::ranges::adjacent_find(texts) != texts.end();
  }

  bool skip(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  std::string quoted() const { return "'" + shortened(text_) + "'"; }

  [[noreturn]] void refuse() const {
    throw Error(path_, "a dimension as JAX prints it, such as 12 or 2*a + floordiv(b, 2) - 3",
                quoted() + " (see character " + std::to_string(at_ + 1) + ")");
  }

  std::string_view text_;
  const Path& path_;
  std::size_t at_ = 0;
};

std::string joined(std::vector<std::string> parts, char separator) {
  std::ranges::sort(parts);
  std::string text;
  for (const std::string& part : parts) (text += part) += separator;
  return text;
}

std::string canonical(const Factor& factor) {
  std::string text(factor.operation == Operation::non_negative ? "max" : factor.name);
  if (factor.operation != Operation::none) {
    text += '(';
    for (const Expression& operand : factor.operands) (text += canonical(operand)) += ',';
    if (factor.operation == Operation::non_negative) text += "0+,";
    text += ')';
  }
  return text + '^' + std::to_string(factor.exponent);
}

}  // namespace

Operation operation_of(std::string_view name) {
  const auto known = std::ranges::find(operations, name, [](const auto& o) { return o.first; });
  return known == std::end(operations) ? Operation::none : known->second;
}

bool is_size(std::string_view text) {
  constexpr std::size_t most_digits = std::numeric_limits<std::int64_t>::digits10;  // of which any number fits
  if (text.empty() || !std::ranges::all_of(text, is_digit)) return false;
  if (text.front() == '0') return text.size() == 1;
  if (text.size() <= most_digits) return true;
  std::int64_t value = 0;
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{};
}

Expression parse_dimension(std::string_view text, const Path& path) { return Parser(text, path).dimension(); }

std::string canonical(const Expression& expression) {
  std::vector<std::string> terms;
  for (const Term& term : expression.terms) {
    std::vector<std::string> factors;
    for (const Factor& factor : term.factors) factors.push_back(canonical(factor));
    std::string text = std::to_string(term.coefficient);
    if (!factors.empty()) text += '*' + joined(std::move(factors), '*');
    terms.push_back(std::move(text));
  }
  return joined(std::move(terms), '+');
}

// JAX's grammar, with spaces anywhere:
//
//   constraint = side ("==" | ">=" | "<=") side
//   side       = sum | "(" side ")"
//   sum        = ["-" | "+"] term {("+" | "-") term}
//   term       = factor ["^" number] {"*" factor ["^" number]}
//   factor     = name | operation "(" sum "," sum ")" | ["-"] number

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

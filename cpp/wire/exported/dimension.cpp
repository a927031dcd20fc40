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

}  // namespace jaxexp::wire

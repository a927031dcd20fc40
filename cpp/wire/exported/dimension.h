// A dimension of a shape as it is printed: an integer, or an expression of dimension variables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// What a factor does with its operands. Releases before 0.4.26 print `non_negative(x)` for `max(x, 0)`.
enum class Operation : std::uint8_t { none, floordiv, mod, max, min, non_negative };

struct Expression;

/// A dimension variable, or an operation on two expressions (non_negative has one), raised to a power.
struct Factor {
  std::string_view name;  // of the variable or the operation
  Operation operation = Operation::none;
  std::uint32_t exponent = 1;
  std::vector<Expression> operands;
};

struct Term {
  std::int64_t coefficient = 1;
  std::vector<Factor> factors;  // none in a constant
};

struct Expression {
  std::vector<Term> terms;

  bool is_constant() const { return terms.size() == 1 && terms.front().factors.empty(); }
};

/// What both dimensions and constraints are made of.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Letters of other scripts are part of names too; the decoder asks Python about these.
inline bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
Operation operation_of(std::string_view name);

/// Whether a text is a plain size, as nearly all dimensions are: digits, without a leading zero, that fit into 63 bits.
bool is_size(std::string_view text);

/// Parses a dimension that is not a plain size. Accepts only what some release of JAX prints: spaces at the same
/// places, no two equal terms or factors, numbers of 64 bits, all within the limits of limits.h. The result refers to
/// the text. Takes n log n steps. Throws Error.
Expression parse_dimension(std::string_view text, const Path& path);

/// Throws Error where a text is not a dimension.
inline void check_dimension(std::string_view text, const Path& path) {
  if (!is_size(text)) parse_dimension(text, path);
}

/// An expression's text in one form, whatever the order of terms and factors and the spelling of the release.
std::string canonical(const Expression& expression);

/// `left == right`, or `left >= right`.
struct Constraint {
  bool is_equality;
  Expression left, right;  // may have equal terms, and constants that can be folded
};

/// Reads what the parser of JAX's SymbolicScope reads, within the limits of limits.h. The result refers to the text.
/// Throws Error.
Constraint parse_constraint(std::string_view text, const Path& path);

}  // namespace jaxexp::wire

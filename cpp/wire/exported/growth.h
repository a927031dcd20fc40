// What JAX's arithmetic makes of symbolic dimensions, estimated before JAX sees them.
//
// Operations are kept as they are written, so the only thing that grows is what equalities substitute: after
// "a == b + c", a^20 has 21 terms, and a*a2*a3... has exponentially many. JAX substitutes at most one term after each
// addition or multiplication.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "wire/base/error.h"
#include "wire/exported/dimension.h"

namespace jaxexp::wire {

class Growth {
 public:
  /// Upper bounds: how many terms an expression has, how many variables and operations are in all of them, and how many
  /// bits its largest coefficient has.
  struct Size {
    std::uint64_t terms = 0, factors = 0, bits = 0;
    bool changes = false;  // whether equalities may substitute something in it
  };

  explicit Growth(std::uint64_t most_steps) : most_(most_steps), left_(most_steps) {}

  /// Spends what making a dimension takes. Throws Error where nothing is left for it.
  void dimension(const Expression& expression, const Path& path);
  /// The same for both sides of a constraint.
  void constraint(const Constraint& constraint, const Path& path);
  /// An equality holds for what follows. `by` is the size of what JAX made of the right side.
  void substitute(const Constraint& equality, const Size& by, const Path& path);

  bool substitutes() const { return substituted_.terms > 0; }

 private:
  Size sum(const Expression& expression, const Path& path);
  Size term(const Term& term, const Path& path);
  Size factor(const Factor& factor, const Path& path);
  Size product(const Size& a, const Size& b, const Path& path);
  /// After an operation: one more substitution, and its cost.
  Size done(Size size, const Path& path);
  void in_order(const Expression& expression, const Path& path);
  void spend(std::uint64_t steps, const Path& path);
  bool is_new_quotient(const Constraint& equality);
  static Size size_as_written(const Expression& sum);

  const std::uint64_t most_;
  std::uint64_t left_;
  std::map<std::string, Size, std::less<>> variables_;  // what equalities substitute for a variable
  Size operations_;                                     // for an operation, or a product
  Size substituted_;                                    // for any of them
  bool has_aliases_ = false;                            // whether other variables may be substituted, too
  std::set<std::string> quotients_;                     // that equalities substitute, and remainders
  bool has_other_operations_ = false;                   // whether they substitute operations that are not in it
};

}  // namespace jaxexp::wire

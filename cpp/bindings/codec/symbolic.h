// JAX's symbolic dimensions by their slots: made of parsed expressions, and printed, without JAX's arithmetic.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/base/jax_refs.h"
#include "bindings/base/nanobind.h"
#include "wire/exported/dimension.h"

namespace jaxexp::bindings {

/// How JAX lays out a dimension: a sum of (term, coefficient), where a term is a product of (factor, exponent), and a
/// factor is a variable, or an operation on dimensions. Both are sorted, the largest first. `size` says how large.
class Symbolic {
 public:
  /// Reads what `layout` returns: the classes of dimensions, terms and factors, and the term 1; or None where this JAX
  /// has another layout. Then nothing is made or printed here.
  explicit Symbolic(nb::handle layout);

  /// That of this JAX, which is made once.
  static const Symbolic& of(const JaxRefs& jax);

  /// Whether `make` certainly makes something. Any thread may ask, without the GIL.
  static bool can_make(const wire::Expression& expression);

  /// Whether this JAX has the known layout.
  bool is_known() const { return dimension_.is_valid(); }

  /// The dimension that is this expression; an int where it is constant. Invalid where it has to be made in another
  /// way: terms or factors are equal, sizes do not fit into 64 bits, or a name is no identifier of Python. `scope`
  /// substitutes nothing.
  nb::object make(const wire::Expression& expression, nb::handle scope) const;

  /// What `str(dimension)` is; nothing where JAX has to say it.
  std::optional<std::string> print(nb::handle dimension) const;

 private:
  struct Plan;
  struct FactorPlan;
  struct TermPlan;
  class Slot {
   public:
    Slot() = default;
    Slot(nb::handle type, const char* name);
    void set(nb::handle object, nb::handle value) const;
    nb::object get(nb::handle object) const;

   private:
    nb::object descriptor_;
  };

  static std::strong_ordering compare(const FactorPlan& a, const FactorPlan& b);
  template <class Whole>
  static std::strong_ordering compare(const Whole& a, const Whole& b);
  template <class Part>
  static bool sort(std::vector<std::pair<Part, std::int64_t>>& parts);
  static bool plan(const wire::Expression& expression, Plan& planned);
  static bool plan(const wire::Term& term, TermPlan& planned);
  static bool plan(const wire::Factor& factor, FactorPlan& planned);
  template <class Test>
  static bool all_names(const Plan& planned, const Test& test);

  nb::object make(const Plan& planned, nb::handle scope) const;
  nb::object make(const TermPlan& planned, nb::handle scope) const;
  nb::object make(const FactorPlan& planned, nb::handle scope) const;
  template <class Part>
  nb::object pairs(const std::vector<std::pair<Part, std::int64_t>>& parts, nb::handle scope) const;
  static nb::object instance(nb::handle type);

  bool print(nb::handle dimension, std::size_t level, std::string& text) const;
  bool print_term(nb::handle term, std::size_t level, std::string& text) const;
  bool print_factor(nb::handle factor, std::size_t level, std::string& text) const;
  bool is_before(nb::handle factor, nb::handle other) const;

  nb::object dimension_, term_, factor_, one_;
  Slot sorted_terms_, scope_, dimension_hash_, dimension_size_;
  Slot factors_, term_hash_, term_size_;
  Slot variable_, operation_, operands_, factor_hash_, factor_size_;
};

}  // namespace jaxexp::bindings

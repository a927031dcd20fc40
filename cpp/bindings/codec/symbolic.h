// JAX's symbolic dimensions by their slots: made of parsed expressions, and printed, without JAX's arithmetic.
#pragma once

#include <nanobind/nanobind.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wire/exported/dimension.h"

namespace jaxexp::bindings {

namespace nb = nanobind;

/// How JAX lays out a dimension: a sum of (term, coefficient), where a term is a product of (factor, exponent), and a
/// factor is a variable, or an operation on dimensions. Both are sorted, the largest first. `size` says how large.
class Symbolic {
 public:
  /// Reads what `layout` returns: the classes of dimensions, terms and factors, and the term 1; or None where this JAX
  /// has another layout. Then nothing is made or printed here.
  explicit Symbolic(nb::handle layout);

  /// The dimension that is this expression; an int where it is constant. Invalid where it has to be made in another
  /// way: terms or factors are equal, or sizes do not fit into 64 bits. `scope` substitutes nothing.
  nb::object make(const wire::Expression& expression, nb::handle scope) const;

  /// What `str(dimension)` is; nothing where JAX has to say it.
  std::optional<std::string> print(nb::handle dimension) const;

 private:
  struct Made;
  struct MadeFactor;
  struct MadeTerm;
  /// A slot of a class.
  class Slot {
   public:
    Slot() = default;
    Slot(nb::handle type, const char* name);
    void set(nb::handle object, nb::handle value) const;
    nb::object get(nb::handle object) const;

   private:
    nb::object descriptor_;
  };

  static std::strong_ordering compare(const MadeFactor& a, const MadeFactor& b);
  static std::strong_ordering compare(const MadeTerm& a, const MadeTerm& b);
  static std::strong_ordering compare(const Made& a, const Made& b);
  template <class Part>
  static bool sort(std::vector<std::pair<Part, std::int64_t>>& parts);

  bool make(const wire::Expression& expression, nb::handle scope, Made& made) const;
  bool make(const wire::Term& term, nb::handle scope, MadeTerm& made) const;
  bool make(const wire::Factor& factor, nb::handle scope, MadeFactor& made) const;
  template <class Part>
  static nb::object pairs(const std::vector<std::pair<Part, std::int64_t>>& parts);
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

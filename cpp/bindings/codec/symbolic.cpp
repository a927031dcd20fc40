// The orders and the sizes are those of JAX, which compares dimensions by them.
#include "bindings/codec/symbolic.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string_view>

#include "bindings/base/objects.h"
#include "wire/exported/limits.h"

namespace jaxexp::bindings {
namespace {

/// Sizes, which are not negative. Returns false where the sum does not fit, as below.
bool add(std::int64_t& sum, std::int64_t number) {
  if (number > std::numeric_limits<std::int64_t>::max() - sum) return false;
  sum += number;
  return true;
}

/// sum += 1 + |count| * size
bool add_sized(std::int64_t& sum, std::int64_t count, std::int64_t size) {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t times = count < 0 ? -static_cast<std::uint64_t>(count) : static_cast<std::uint64_t>(count);
  if (size != 0 && times > most / static_cast<std::uint64_t>(size)) return false;
  return add(sum, static_cast<std::int64_t>(times * static_cast<std::uint64_t>(size))) && add(sum, 1);
}

std::optional<std::int64_t> small(nb::handle number) {
  int overflow = 0;
  if (!PyLong_CheckExact(number.ptr())) return std::nullopt;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) return std::nullopt;
  return value;
}

/// Of a tuple or list of pairs, one.
std::optional<std::pair<nb::handle, nb::handle>> pair_of(nb::handle pair) {
  if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) return std::nullopt;
  return std::pair<nb::handle, nb::handle>(PyTuple_GET_ITEM(pair.ptr(), 0), PyTuple_GET_ITEM(pair.ptr(), 1));
}

bool is_ascii(std::string_view name) {
  return std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Of ASCII, the parser takes only identifiers. What else is one, Python knows.
bool is_identifier(std::string_view name) { return is_ascii(name) || PyUnicode_IsIdentifier(text(name).ptr()) == 1; }

bool append(nb::handle string, std::string& text) {
  if (!PyUnicode_CheckExact(string.ptr())) return false;
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(string.ptr(), &size);
  if (!data) PyErr_Clear();
  if (data) text.append(data, static_cast<std::size_t>(size));
  return data != nullptr;
}

}  // namespace

struct Symbolic::FactorPlan {
  std::string_view name;
  bool is_variable = true;
  std::vector<Plan> operands;
  std::int64_t size = 1;
};

struct Symbolic::TermPlan {
  std::vector<std::pair<FactorPlan, std::int64_t>> parts;  // with their exponents
  std::int64_t size = 0;
};

/// Parts in JAX's order, with their sizes.
struct Symbolic::Plan {
  std::vector<std::pair<TermPlan, std::int64_t>> parts;  // with their coefficients
  std::int64_t size = 0;

  bool is_constant() const { return parts.size() == 1 && parts.front().first.parts.empty(); }
};

Symbolic::Slot::Slot(nb::handle type, const char* name) : descriptor_(type.attr(name)) {}

void Symbolic::Slot::set(nb::handle object, nb::handle value) const {
  if (Py_TYPE(descriptor_.ptr())->tp_descr_set(descriptor_.ptr(), object.ptr(), value.ptr()) != 0)
    throw nb::python_error();
}

nb::object Symbolic::Slot::get(nb::handle object) const {
  return owned(Py_TYPE(descriptor_.ptr())
                   ->tp_descr_get(descriptor_.ptr(), object.ptr(), reinterpret_cast<PyObject*>(object.type().ptr())));
}

Symbolic::Symbolic(nb::handle layout) {
  if (layout.is_none()) return;
  dimension_ = layout[0], term_ = layout[1], factor_ = layout[2], one_ = layout[3];
  sorted_terms_ = {dimension_, "_sorted_terms"}, scope_ = {dimension_, "_scope"};
  dimension_hash_ = {dimension_, "_hash"}, dimension_size_ = {dimension_, "_size"};
  factors_ = {term_, "_factors"}, term_hash_ = {term_, "_hash"}, term_size_ = {term_, "_size"};
  variable_ = {factor_, "var"}, operation_ = {factor_, "operation"}, operands_ = {factor_, "operands"};
  factor_hash_ = {factor_, "_hash"}, factor_size_ = {factor_, "_size"};
}

const Symbolic& Symbolic::of(const JaxRefs& jax) {
  if (!jax.symbolic) {
    auto made = std::make_shared<const Symbolic>(jax.dimension_layout());
    if (!jax.symbolic) jax.symbolic = std::move(made);  // another thread may have been faster
  }
  return *jax.symbolic;
}

bool Symbolic::can_make(const wire::Expression& expression) {
  Plan planned;
  return plan(expression, planned) && all_names(planned, is_ascii);
}

nb::object Symbolic::make(const wire::Expression& expression, nb::handle scope) const {
  Plan planned;
  if (!is_known() || !plan(expression, planned) || !all_names(planned, is_identifier)) return {};
  if (planned.is_constant()) return owned(PyLong_FromLongLong(planned.parts.front().second));
  return make(planned, scope);
}

bool Symbolic::plan(const wire::Expression& expression, Plan& planned) {
  planned.parts.resize(expression.terms.size());
  for (std::size_t i = 0; i < planned.parts.size(); ++i) {
    auto& [term, coefficient] = planned.parts[i];
    coefficient = expression.terms[i].coefficient;
    if (!plan(expression.terms[i], term) || !add_sized(planned.size, coefficient, term.size)) return false;
  }
  return sort(planned.parts);
}

bool Symbolic::plan(const wire::Term& term, TermPlan& planned) {
  planned.parts.resize(term.factors.size());
  for (std::size_t i = 0; i < planned.parts.size(); ++i) {
    auto& [factor, exponent] = planned.parts[i];
    exponent = term.factors[i].exponent;
    if (!plan(term.factors[i], factor) || !add_sized(planned.size, exponent, factor.size)) return false;
  }
  return sort(planned.parts);
}

bool Symbolic::plan(const wire::Factor& factor, FactorPlan& planned) {
  const bool is_old = factor.operation == wire::Operation::non_negative;  // of max(x, 0)
  planned.name = is_old ? "max" : factor.name;
  planned.is_variable = factor.operation == wire::Operation::none;
  planned.operands.resize(factor.operands.size() + (is_old ? 1 : 0));
  for (std::size_t i = 0; i < factor.operands.size(); ++i) {
    if (!plan(factor.operands[i], planned.operands[i])) return false;
    if (!add(planned.size, planned.operands[i].size)) return false;
  }
  if (!is_old) return true;
  Plan& zero = planned.operands.back();
  return plan(wire::Expression{{wire::Term{0, {}}}}, zero) && add(planned.size, zero.size);
}

template <class Test>
bool Symbolic::all_names(const Plan& planned, const Test& test) {
  return std::ranges::all_of(planned.parts, [&](const auto& term) {
    return std::ranges::all_of(term.first.parts, [&](const auto& factor) {
      const auto of_operand = [&](const Plan& operand) { return all_names(operand, test); };
      return test(factor.first.name) && std::ranges::all_of(factor.first.operands, of_operand);
    });
  });
}

nb::object Symbolic::make(const Plan& planned, nb::handle scope) const {
  nb::object made = instance(dimension_);
  sorted_terms_.set(made, pairs(planned.parts, scope));
  scope_.set(made, scope);
  dimension_hash_.set(made, nb::none());
  dimension_size_.set(made, owned(PyLong_FromLongLong(planned.size)));
  return made;
}

nb::object Symbolic::make(const TermPlan& planned, nb::handle scope) const {
  if (planned.parts.empty()) return one_;
  nb::object made = instance(term_);
  factors_.set(made, pairs(planned.parts, scope));
  term_hash_.set(made, nb::none());
  term_size_.set(made, owned(PyLong_FromLongLong(planned.size)));
  return made;
}

nb::object Symbolic::make(const FactorPlan& planned, nb::handle scope) const {
  const nb::object operands =
      new_tuple(planned.operands.size(), [&](std::size_t i) { return make(planned.operands[i], scope); });
  PyObject* interned = text(planned.name).release().ptr();
  PyUnicode_InternInPlace(&interned);
  const nb::object name = nb::steal(interned);
  nb::object made = instance(factor_);
  variable_.set(made, planned.is_variable ? name : nb::none());
  operation_.set(made, planned.is_variable ? nb::none() : name);
  operands_.set(made, operands);
  factor_hash_.set(made, nb::none());
  factor_size_.set(made, owned(PyLong_FromLongLong(planned.size)));
  return made;
}

template <class Part>
nb::object Symbolic::pairs(const std::vector<std::pair<Part, std::int64_t>>& parts, nb::handle scope) const {
  return new_tuple(parts.size(), [&](std::size_t i) {
    const nb::object part = make(parts[i].first, scope), number = owned(PyLong_FromLongLong(parts[i].second));
    return owned(PyTuple_Pack(2, part.ptr(), number.ptr()));
  });
}

nb::object Symbolic::instance(nb::handle type) {
  auto* const of = reinterpret_cast<PyTypeObject*>(type.ptr());
  return owned(of->tp_alloc(of, 0));
}

/// The largest first; false where two are equal.
template <class Part>
bool Symbolic::sort(std::vector<std::pair<Part, std::int64_t>>& parts) {
  if (parts.size() < 2) return true;
  const auto is_larger = [](const auto& a, const auto& b) { return compare(a.first, b.first) > 0; };
  const auto falls = [&] {
    return std::ranges::adjacent_find(parts, [&](const auto& a, const auto& b) { return !is_larger(a, b); }) ==
           parts.end();
  };
  if (falls()) return true;  // as today's releases print terms
  std::ranges::reverse(parts);
  if (falls()) return true;  // as they print factors
  std::ranges::sort(parts, is_larger);
  return falls();
}

std::strong_ordering Symbolic::compare(const FactorPlan& a, const FactorPlan& b) {
  if (const auto order = a.size <=> b.size; order != 0) return order;
  if (const auto order = a.name <=> b.name; a.is_variable || order != 0) return order;
  return std::lexicographical_compare_three_way(a.operands.begin(), a.operands.end(), b.operands.begin(),
                                                b.operands.end(),
                                                [](const Plan& x, const Plan& y) { return compare(x, y); });
}

/// Of terms, or of dimensions.
template <class Whole>
std::strong_ordering Symbolic::compare(const Whole& a, const Whole& b) {
  if (const auto order = a.size <=> b.size; order != 0) return order;
  return std::lexicographical_compare_three_way(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(),
                                                [](const auto& x, const auto& y) {
                                                  const auto order = compare(x.first, y.first);
                                                  return order != 0 ? order : x.second <=> y.second;
                                                });
}

std::optional<std::string> Symbolic::print(nb::handle dimension) const {
  std::string text;
  if (!dimension_.is_valid() || !print(dimension, 0, text)) return std::nullopt;
  return text;
}

bool Symbolic::print(nb::handle dimension, std::size_t level, std::string& text) const {
  if (level > wire::max_dimension_depth || !dimension.type().is(dimension_)) return false;
  const nb::object terms = sorted_terms_.get(dimension);
  if (!PyTuple_CheckExact(terms.ptr())) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(terms.ptr()); ++i) {
    const auto term = pair_of(PyTuple_GET_ITEM(terms.ptr(), i));
    if (!term || !term->first.type().is(term_)) return false;
    const auto coefficient = small(term->second);
    if (!coefficient || text.size() > wire::max_dimension_length) return false;
    const nb::object factors = factors_.get(term->first);
    if (!PyTuple_CheckExact(factors.ptr()) && !PyList_CheckExact(factors.ptr())) return false;
    const bool is_constant = PySequence_Fast_GET_SIZE(factors.ptr()) == 0;
    const std::uint64_t number =
        *coefficient < 0 ? -static_cast<std::uint64_t>(*coefficient) : static_cast<std::uint64_t>(*coefficient);
    if (i > 0) text += ' ';
    if (*coefficient < 0)
      text += "- ";
    else if (i > 0 && (*coefficient > 0 || !is_constant))
      text += "+ ";
    if (is_constant || number != 1) text += std::to_string(number);
    if (is_constant) continue;
    if (*coefficient == 0) return false;
    if (number != 1) text += '*';
    if (!print_term(factors, level, text)) return false;
  }
  return true;
}

/// Factors are printed in the opposite order.
bool Symbolic::print_term(nb::handle factors, std::size_t level, std::string& text) const {
  PyObject** const items = PySequence_Fast_ITEMS(factors.ptr());
  nb::handle previous;
  for (Py_ssize_t i = PySequence_Fast_GET_SIZE(factors.ptr()); i-- > 0;) {
    const auto factor = pair_of(items[i]);
    if (!factor || !factor->first.type().is(factor_)) return false;
    const auto exponent = small(factor->second);
    if (!exponent) return false;
    if (previous.is_valid() && !is_before(previous, factor->first)) return false;
    if (previous.is_valid()) text += '*';
    if (!print_factor(factor->first, level, text)) return false;
    if (*exponent != 1) (text += '^') += std::to_string(*exponent);
    previous = factor->first;
  }
  return true;
}

bool Symbolic::print_factor(nb::handle factor, std::size_t level, std::string& text) const {
  if (const nb::object variable = variable_.get(factor); !variable.is_none()) return append(variable, text);
  if (!append(operation_.get(factor), text)) return false;
  const nb::object operands = operands_.get(factor);
  if (!PyTuple_CheckExact(operands.ptr())) return false;
  text += '(';
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands.ptr()); ++i) {
    if (i > 0) text += ", ";
    if (!print(PyTuple_GET_ITEM(operands.ptr(), i), level + 1, text)) return false;
  }
  text += ')';
  return true;
}

/// Whether a factor is certainly smaller than another one: by its size, or as a variable by its name.
bool Symbolic::is_before(nb::handle factor, nb::handle other) const {
  const auto size = small(factor_size_.get(factor)), other_size = small(factor_size_.get(other));
  if (!size || !other_size) return false;
  if (*size != *other_size) return *size < *other_size;
  const nb::object name = variable_.get(factor), other_name = variable_.get(other);
  if (!PyUnicode_CheckExact(name.ptr()) || !PyUnicode_CheckExact(other_name.ptr())) return false;
  return PyUnicode_Compare(name.ptr(), other_name.ptr()) < 0;
}

}  // namespace jaxexp::bindings

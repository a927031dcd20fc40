// AbstractValue <-> jax.core.ShapedArray: shape, dtype and memory space. Shardings are kept beside the avals.
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "bindings/base/errors.h"
#include "bindings/base/objects.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "wire/exported/dimension.h"
#include "wire/exported/generation.h"

namespace jaxexp::bindings {

Encoder::Aval Encoder::aval(nb::handle aval) {
  Aval& known = this->known(avals_, aval);
  if (known.table.IsNull()) known = written_aval(aval);
  if (known.exported != exported_number_) {
    known.exported = exported_number_;
    known.number = distinct_avals_.number(known.table);
  }
  return known;
}

Encoder::Aval Encoder::written_aval(nb::handle aval) {
  const bool is_weak = nb::object(aval.attr(names_.weak_type)).is(nb::handle(Py_True));

  const nb::tuple shape = tuple_of(aval.attr(names_.shape));
  Offsets<wire::String> dimensions;
  for (nb::handle dimension : shape) dimensions.push_back(this->dimension(dimension));
  const auto dimension_vector = writer_.offsets<wire::String>(dimensions);
  const schema::DType dtype = this->dtype(aval.attr(names_.dtype));
  const nb::object memory_space = aval.attr(names_.memory_space);
  const auto memory = std::ranges::find_if(jax_.memory_spaces, [&](const auto& m) { return m.is(memory_space); });
  if (memory == jax_.memory_spaces.end())
    refuse("memory_space has to be one of JAX's, found " + describe(memory_space));
  const auto space = static_cast<schema::MemorySpace>(1 + (memory - jax_.memory_spaces.begin()));

  const auto table = writer_.table<schema::AbstractValue>(
      wire::Table::aval, {dimension_vector.o, static_cast<std::uint32_t>(dtype), static_cast<std::uint32_t>(space)},
      [&] {
        return schema::CreateAbstractValue(writer_.fbb(), schema::AbstractValueKind::shapedArray, dimension_vector,
                                           dtype, space);
      });
  return {table, is_weak};
}

Offset<wire::String> Encoder::dimension(nb::handle dimension) {
  if (PyLong_CheckExact(dimension.ptr())) {
    char digits[24];
    const auto value = integer(dimension, 0, std::numeric_limits<std::int64_t>::max(), "a dimension");
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return writer_.string({digits, static_cast<std::size_t>(end - digits)});
  }
  std::uint32_t& offset = known(dimensions_, dimension);
  if (offset != 0) return offset;
  if (const std::optional<std::string> printed = Symbolic::of(jax_).print(dimension)) {
    offset = this->dimension(*printed).o;
  } else {
    const nb::str by_jax(dimension);
    offset = this->dimension(utf8(by_jax, "a dimension")).o;
  }
  if (notes_ && !constraints_noted_) note_constraints(dimension);
  return offset;
}

Offset<wire::String> Encoder::dimension(std::string_view text) {
  try {
    wire::check_dimension(text, {});
  } catch (const wire::Error& error) {
    refuse("the format holds " + error.expected + ", found " + error.found);
  }
  return writer_.string(text);
}

/// The dimensions of a function, and of its VJPs, are of one scope, whose constraints the format drops.
void Encoder::note_constraints(nb::handle dimension) {
  constraints_noted_ = true;
  for (nb::handle constraint : tuple_of(jax_.constraints_of(dimension))) {
    const std::string_view text = utf8(constraint, "a constraint");
    try {
      wire::parse_constraint(text, {});
    } catch (const wire::Error& error) {
      refuse("the trailer holds " + error.expected + ", found " + error.found +
             "; serialize(trailer=False) leaves it out");
    }
    notes_->constraints.emplace_back(text);
  }
  if (notes_->constraints.size() > wire::max_constraints)
    refuse("the trailer has room for " + std::to_string(wire::max_constraints) +
           " constraints on dimension variables, found " + std::to_string(notes_->constraints.size()));
}

schema::DType Encoder::dtype(nb::handle dtype) {
  nb::object kind = nb::borrow(PyDict_GetItemWithError(jax_.kinds_of_dtypes.ptr(), dtype.ptr()));
  if (!kind.is_valid()) {
    if (PyErr_Occurred()) throw nb::python_error();
    try {
      kind = jax_.kind_of_dtype(dtype);
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_LookupError)) throw;
      refuse("the dtype " + describe(dtype) + " has no number in the format", Also::key_error);
    }
  }
  return static_cast<schema::DType>(integer(kind, 0, std::numeric_limits<std::int8_t>::max(), "the number of a dtype"));
}

/// Everything that determines an aval, as bytes. `is_constant` says whether its dimensions are. Others are in the key
/// by their objects, of which there is one for each text: many avals may share a long text.
std::string_view Decoder::aval_key(const schema::AbstractValue& aval, bool& is_constant, const wire::Path& where) {
  is_constant = true;
  key_.assign({static_cast<char>(aval.dtype()), static_cast<char>(aval.memory_space())});
  for (std::uint32_t i = 0; i < wire::Values::length(aval.shape()); ++i) {
    const flatbuffers::String& text = *aval.shape()->Get(i);
    if (wire::is_size(text.string_view())) {
      (key_ += text.string_view()) += ';';
      continue;
    }
    is_constant = false;
    const PyObject* const made = this->dimension_once(text, {&where, "shape", i}).ptr();
    (key_ += '@').append(reinterpret_cast<const char*>(&made), sizeof made);
  }
  return key_;
}

nb::object Decoder::aval(const schema::AbstractValue& aval, const wire::Path& where) {
  const auto [object, is_new] = avals_.insert(position(aval));
  if (!is_new) return object;
  bool is_constant = false;
  const std::string key(aval_key(aval, is_constant, where));
  // Others are registered with JAX, and may become other ones.
  const auto kind = static_cast<int>(aval.dtype());
  const bool is_dtype_of_format = kind >= 0 && static_cast<std::size_t>(kind) < jax_.dtypes.size();
  if (!is_dtype_of_format) {
    // is made each time
  } else if (is_constant) {
    object = jax_.avals.find(key);
  } else if (const auto known = symbolic_avals_.find(key); known != symbolic_avals_.end()) {
    object = known->second;
  }
  const bool is_known = object.is_valid();
  const nb::object shape = is_known ? nb::object(object.attr(names_.shape)) : this->shape(aval.shape(), where);
  count_hash(shape, std::string_view(key).substr(2), {&where, "shape"});  // what was read before changes no outcome
  if (is_known) return object;
  const nb::object dtype = this->dtype(static_cast<int>(aval.dtype()), {&where, "dtype"});
  const auto space = std::max(aval.memory_space(), schema::MemorySpace::Device);
  const nb::object& memory_space = jax_.memory_spaces[static_cast<std::size_t>(space) - 1];
  const bool is_plain = is_dtype_of_format && space == schema::MemorySpace::Device;
  object = reading(where, "a shape and dtype that make an aval", [&] {
    if (is_plain)
      if (nb::object aval = plain_aval(shape, dtype); aval.is_valid()) return aval;
    return jax_.ShapedArray(shape, dtype, nb::arg("memory_space") = memory_space);
  });
  if (!is_dtype_of_format) return object;
  if (is_constant) {
    constexpr std::size_t bytes_of_aval = 384, bytes_of_dimension = 40;
    jax_.avals.insert(key, object, bytes_of_aval + bytes_of_dimension * wire::Values::length(aval.shape()));
  } else {
    symbolic_avals_.try_emplace(key, object);
  }
  return object;
}

/// The same as from the constructor, without its preparations. Invalid where this JAX may do it in another way.
nb::object Decoder::plain_aval(const nb::object& shape, const nb::object& dtype) {
  const auto rank = static_cast<std::size_t>(PyTuple_GET_SIZE(shape.ptr()));
  if (rank >= jax_.plain_avals.size() || jax_.plain_avals[rank].is_none()) return {};
  const nb::handle rest = jax_.plain_avals[rank];
  std::array<PyObject*, 8> arguments{shape.ptr(), dtype.ptr(), Py_False};
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(rest.ptr()));
  if (3 + count > arguments.size()) return {};
  for (std::size_t i = 0; i < count; ++i) arguments[3 + i] = PyTuple_GET_ITEM(rest.ptr(), static_cast<Py_ssize_t>(i));
  return owned(PyObject_Vectorcall(jax_.create_aval.ptr(), arguments.data(), 3 + count, nullptr));
}

nb::object Decoder::shape(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* dimensions,
                          const wire::Path& where) {
  return tuple_of(dimensions, [&](const flatbuffers::String& text, std::uint32_t i) {
    return dimension_once(text, {&where, "shape", i});
  });
}

/// Refuses many shapes of one hash, which an artifact may choose: JAX compares a new aval with all others of its hash.
void Decoder::count_hash(const nb::object& shape, std::string_view key, const wire::Path& where) {
  if (PyTuple_GET_SIZE(shape.ptr()) < 2) return;  // of one size, hardly any have one hash
  if (!shapes_.insert(wire::SeededHash()(key) | 1).second) return;
  not_hashed_.push_back(shape);
  if (shapes_.size() <= wire::max_of_one_hash) return;  // most artifacts have fewer
  for (const nb::object& one : std::exchange(not_hashed_, {})) {
    const Py_hash_t hash = PyObject_Hash(one.ptr());
    if (hash == -1) throw nb::python_error();
    if (++shapes_of_hash_.insert(static_cast<std::uint64_t>(hash) + 1).first > wire::max_of_one_hash)
      throw wire::Error(
          where, "shapes of different hashes",
          "more than " + std::to_string(wire::max_of_one_hash) + " with the hash " + std::to_string(hash));
  }
}

nb::object Decoder::dimension_once(const flatbuffers::String& text, const wire::Path& where) {
  const auto [object, is_new] = dimensions_.insert(position(text));
  if (is_new) object = dimension(text, where);
  return object;
}

nb::object Decoder::dimension(const flatbuffers::String& text, const wire::Path& where) {
  const std::string_view printed = text.string_view();
  if (wire::is_size(printed)) {
    std::int64_t size = 0;
    std::from_chars(printed.data(), printed.data() + printed.size(), size);
    return owned(PyLong_FromLongLong(size));
  }
  shareable_ = false;
  if (const auto known = symbolic_dimensions_.find(printed); known != symbolic_dimensions_.end()) return known->second;
  const wire::Expression expression = wire::parse_dimension(printed, where);
  nb::object made;
  reading(where, "a dimension", [&] {
    if (!scope_.is_valid()) scope_ = scope();
    growth_.dimension(expression, where);
    if (!growth_.substitutes()) made = Symbolic::of(jax_).make(expression, scope_);
    return made;
  });
  if (!made.is_valid()) made = dimension_by_jax(printed, expression, where);
  symbolic_dimensions_.try_emplace(printed, made);
  return made;
}

/// The same with JAX's own functions, where an equality may substitute something.
nb::object Decoder::dimension_by_jax(std::string_view printed, const wire::Expression& expression,
                                     const wire::Path& where) {
  nb::str printed_again;
  const nb::object symbolic = reading(where, "a dimension", [&] {
    const nb::object made =
        growth_.substitutes() ? sum(expression, where) : jax_.dimension_of_terms(terms(expression, where), scope_);
    printed_again = nb::str(made);
    return made;
  });
  // Releases print an expression in different ways; the one that JAX made here has to be the same expression.
  const std::string_view again = nb::cast<std::string_view>(printed_again);
  const auto is_same = [&] {
    try {
      return wire::canonical(expression) == wire::canonical(wire::parse_dimension(again, {}));
    } catch (const wire::Error&) {
      return false;
    }
  };
  if (again != printed && !is_same())
    throw wire::Error(where, "a dimension that prints as '" + wire::shortened(again) + "', as JAX reads it",
                      "'" + wire::shortened(printed) + "'");
  return symbolic;
}

/// The terms of an expression: (coefficient, factors), where a factor is (name, terms of its operands, exponent).
nb::object Decoder::terms(const wire::Expression& expression, const wire::Path& where) {
  nb::list terms = new_list();
  for (const wire::Term& term : expression.terms) {
    nb::list factors = new_list();
    for (const wire::Factor& factor : term.factors) {
      nb::list operands = new_list();
      for (const wire::Expression& operand : factor.operands) operands.append(this->terms(operand, where));
      const bool is_old = factor.operation == wire::Operation::non_negative;  // of max(x, 0)
      if (is_old) operands.append(this->terms(wire::Expression{{wire::Term{0, {}}}}, where));
      nb::object name = is_old ? nb::str("max") : this->name(factor, where);
      factors.append(nb::make_tuple(name, operands, factor.exponent));
    }
    terms.append(nb::make_tuple(term.coefficient, factors));
  }
  return terms;
}

nb::object Decoder::name(const wire::Factor& factor, const wire::Path& where) {
  nb::object name = text(factor.name);
  if (factor.operation == wire::Operation::none && PyUnicode_IsIdentifier(name.ptr()) != 1)
    throw wire::Error(where, "a dimension variable with the name of a Python variable",
                      "'" + wire::shortened(factor.name) + "'");
  return name;
}

nb::object Decoder::sum(const wire::Expression& expression, const wire::Path& where) {
  std::vector<nb::object> terms;
  for (const wire::Term& term : expression.terms) terms.push_back(product(term, where));
  return reduce(std::move(terms), PyNumber_Add);
}

nb::object Decoder::product(const wire::Term& term, const wire::Path& where) {
  std::vector<nb::object> factors;
  for (const wire::Factor& factor : term.factors) factors.push_back(power(factor, where));
  const nb::object coefficient = owned(PyLong_FromLongLong(term.coefficient));
  if (factors.empty()) return coefficient;
  nb::object product = reduce(std::move(factors), PyNumber_Multiply);
  return term.coefficient == 1 ? product : reduce({std::move(product), coefficient}, PyNumber_Multiply);
}

nb::object Decoder::power(const wire::Factor& factor, const wire::Path& where) {
  nb::object base;
  if (factor.operation == wire::Operation::none) {
    base = jax_.dimension_variable(name(factor, where), scope_);
  } else if (factor.operation == wire::Operation::non_negative) {
    base = jax_.dimension_operation("max", sum(factor.operands[0], where), 0, scope_);
  } else {
    base =
        jax_.dimension_operation(factor.name, sum(factor.operands[0], where), sum(factor.operands[1], where), scope_);
  }
  if (factor.exponent == 1) return base;
  return reduce({std::move(base), nb::int_(factor.exponent)},
                [](PyObject* b, PyObject* exponent) { return PyNumber_Power(b, exponent, Py_None); });
}

/// Adds halves first: JAX merges sorted terms, so adding one term after the other would take quadratic time.
nb::object Decoder::reduce(std::vector<nb::object> operands, PyObject* (*operation)(PyObject*, PyObject*)) {
  for (std::size_t step = 1; step < operands.size(); step *= 2) {
    for (std::size_t i = 0; i + step < operands.size(); i += 2 * step) {
      operands[i] = owned(operation(operands[i].ptr(), operands[i + step].ptr()));
    }
  }
  return operands.front();
}

/// With the constraints that the trailer keeps, so that it bounds dimensions as the original's does.
nb::object Decoder::scope() {
  scope_ = jax_.SymbolicScope();
  const auto* constraints = trailer_ ? trailer_->content().constraints() : nullptr;
  for (std::uint32_t i = 0; i < wire::Values::length(constraints); ++i) {
    const wire::Path where{nullptr, "trailer.constraints", i};
    const flatbuffers::String& text = *constraints->Get(i);
    const wire::Constraint constraint = wire::parse_constraint(text.string_view(), where);
    growth_.constraint(constraint, where);
    const nb::object right = reading(where, "a constraint on dimension variables", [&] {
      return jax_.add_constraint(scope_, string(text), constraint.is_equality, sum(constraint.left, where),
                                 sum(constraint.right, where));
    });
    if (!constraint.is_equality) continue;
    const auto number = [&](int i) { return nb::cast<std::uint64_t>(right[i]); };
    growth_.substitute(constraint, {number(0), number(1), number(2), true}, where);
  }
  return scope_;
}

nb::object Decoder::dtype(int kind, const wire::Path& where) {
  if (kind >= 0 && static_cast<std::size_t>(kind) < jax_.dtypes.size())
    return jax_.dtypes[static_cast<std::size_t>(kind)];
  try {
    return jax_.dtype_of_kind(kind);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_LookupError)) throw;
    throw wire::Error(where, "a dtype (0 to " + std::to_string(jax_.dtypes.size() - 1) + ", or a registered one)",
                      wire::unknown(kind, exported_));
  }
}

}  // namespace jaxexp::bindings

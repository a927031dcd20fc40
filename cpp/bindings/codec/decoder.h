// The state of one deserialization, and what it can read: one method for each type, defined in the file of that type.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/base/errors.h"
#include "bindings/base/jax_refs.h"
#include "bindings/base/objects.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/symbolic.h"
#include "wire/artifact/trailer.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/dimension.h"
#include "wire/exported/growth.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {

/// Makes Python objects of an artifact that wire::verify and wire::check have passed. Every table, vector of bytes and
/// string becomes one object, however often the artifact refers to it.
class Decoder {
 public:
  /// `path` is empty for the primal, "vjp" for its VJP, and so on; `order` counts these. `trailer` may be null.
  Decoder(const JaxRefs& jax, const schema::Exported& exported, std::span<const std::uint8_t> buffer,
          std::string_view path, const wire::Trailer* trailer, std::size_t order)
      : jax_(jax),
        names_(jax.names),
        exported_(exported),
        base_(buffer.data()),
        path_{nullptr, path},
        trailer_(trailer),
        notes_(trailer ? &trailer->notes(order) : nullptr),
        growth_(wire::max_symbolic_steps(buffer.size())) {}

  /// The fields of the Exported, each behind its name.
  JaxRefs::NamedValues exported();

  /// Whether reading the same again would give equal objects. It does not with symbolic dimensions, which have a scope
  /// of their own in each Exported, nor with what registered functions return.
  bool is_shareable() const { return shareable_; }
  /// What `exported` read beside them.
  const Said& said() const { return said_; }

 private:
  // pytreedef.cpp
  nb::object tree(const schema::PyTreeDef& root, const nb::object& avals, const wire::Path& where);
  nb::object pytree(const schema::PyTreeDef& node, const nb::object& leaves, Py_ssize_t& next_leaf,
                    const wire::Path& where);
  // aval.cpp
  std::string_view aval_key(const schema::AbstractValue& aval, bool& is_constant, const wire::Path& where);
  nb::object aval(const schema::AbstractValue& aval, const wire::Path& where);
  nb::object plain_aval(const nb::object& shape, const nb::object& dtype);
  nb::object shape(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* dimensions,
                   const wire::Path& where);
  void count_hash(const nb::object& shape, std::string_view key, const wire::Path& where);
  nb::object dimension_once(const flatbuffers::String& text, const wire::Path& where);
  nb::object dimension(const flatbuffers::String& text, const wire::Path& where);
  nb::object dimension_by_jax(std::string_view printed, const wire::Expression& expression, const wire::Path& where);
  nb::object terms(const wire::Expression& expression, const wire::Path& where);
  nb::object name(const wire::Factor& factor, const wire::Path& where);
  nb::object sum(const wire::Expression& expression, const wire::Path& where);
  nb::object product(const wire::Term& term, const wire::Path& where);
  nb::object power(const wire::Factor& factor, const wire::Path& where);
  static nb::object reduce(std::vector<nb::object> operands, PyObject* (*operation)(PyObject*, PyObject*));
  nb::object scope();
  nb::object dtype(int kind, const wire::Path& where);
  // sharding.cpp
  nb::object mesh(const schema::AbstractMesh& mesh, const wire::Path& where);
  nb::object device(const schema::AbstractDevice& device, const wire::Path& where);
  static const char* platform_of_kind(std::string kind, const wire::Path& where);
  nb::object partition_spec(const schema::PartitionSpec& spec, const wire::Path& where);
  nb::object one_axis(const schema::PartitionSpecOneAxis& axis);
  nb::object named_sharding(const schema::NamedSharding& sharding, const wire::Path& where);
  nb::object hlo_sharding(const flatbuffers::Vector<std::int8_t>& proto, const nb::object& aval,
                          const wire::Path& where);
  // exported.cpp
  nb::object effect(const schema::Effect& effect, const wire::Path& where);
  nb::object safety_check(const schema::DisabledSafetyCheck& check, const wire::Path& where);
  std::pair<nb::object, nb::object> values(const wire::Values& values, std::string_view avals_field,
                                           std::string_view shardings_field);

  nb::object string(const flatbuffers::String& text) {
    const auto [object, is_new] = strings_.insert(position(text));
    if (is_new) object = bindings::text(text.string_view());
    return object;
  }
  nb::object bytes(const flatbuffers::Vector<std::int8_t>& data) {
    const auto [object, is_new] = bytes_.insert(position(data));
    if (is_new) object = nb::bytes(data.data(), data.size());
    return object;
  }
  nb::object strings(const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>* texts) {
    return tuple_of(texts, [&](const flatbuffers::String& text, std::uint32_t) { return string(text); });
  }

  /// A tuple of what `read` makes of each element of a vector, which may be absent. Elements are references to tables
  /// and strings, or numbers.
  template <class Vector, class Read>
  static nb::object tuple_of(const Vector* vector, const Read& read) {
    const std::uint32_t size = wire::Values::length(vector);
    nb::object tuple = owned(PyTuple_New(size));
    for (std::uint32_t i = 0; i < size; ++i) {
      nb::object element;
      if constexpr (std::is_pointer_v<typename Vector::return_type>)
        element = read(*vector->Get(i), i);
      else
        element = read(vector->Get(i), i);
      PyTuple_SET_ITEM(tuple.ptr(), i, element.release().ptr());
    }
    return tuple;
  }

  /// Runs `make`, whose Python exceptions then say that `where` is not what was expected there.
  template <class Make>
  static nb::object reading(const wire::Path& where, const char* expected, const Make& make) {
    try {
      return make();
    } catch (nb::python_error& error) {
      raise_not_readable(error, where, expected);
    }
  }

  /// Runs `make`, whose own DeserializationErrors then say that they are about `where`.
  template <class Make>
  static nb::object placing(const wire::Path& where, const Make& make) {
    try {
      return make();
    } catch (nb::python_error& error) {
      raise_at(error, where);
    }
  }

  template <class T>
  std::uint64_t position(const T& table) const {
    return static_cast<std::uint64_t>(reinterpret_cast<const std::uint8_t*>(&table) - base_);
  }

  using Objects = wire::FlatMap<nb::object>;  // by position

  const JaxRefs& jax_;
  const JaxRefs::Names& names_;
  const schema::Exported& exported_;
  const std::uint8_t* base_;
  const wire::Path path_;
  const wire::Trailer* const trailer_;
  const schema::FunctionNotes* const notes_;  // of the trailer
  std::string key_;                           // of a cache, while it is being put together
  wire::Growth growth_;                       // of symbolic dimensions
  bool shareable_ = true;
  nb::dict parsed_auxdata_ = new_dict();  // of custom nodes that jaxexp itself knows
  Said said_;
  bool library_nodes_ = false;  // whether the tree that is read has such nodes
  nb::object described_;        // that tree as the artifact describes it, where it has
  nb::object scope_;            // of symbolic dimensions; made for the first of them
  std::unordered_map<std::string_view, nb::object, wire::SeededHash> symbolic_dimensions_;  // by text in the artifact
  wire::FlatMap<wire::Nothing> shapes_;                                                     // by what they say
  std::vector<nb::object> not_hashed_;                                                      // of these, the last ones
  wire::FlatMap<std::uint32_t> shapes_of_hash_;                                             // how many, by their hash
  std::unordered_map<std::string, nb::object, wire::SeededHash> symbolic_avals_;            // by aval_key
  Objects strings_, bytes_, dimensions_, avals_, meshes_, specs_, named_shardings_;
};

}  // namespace jaxexp::bindings

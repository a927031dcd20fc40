// The arguments or the results of an Exported, whichever of the two layouts holds them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "exported_generated.h"

namespace jaxexp::wire {

/// Artifacts of JAX 0.10.0 and newer list their distinct avals and shardings, and an index for each argument; older
/// ones have only a full list. Readers use the indices where there are any.
struct Values {
  using Avals = flatbuffers::Vector<flatbuffers::Offset<schema::AbstractValue>>;
  using Shardings = flatbuffers::Vector<flatbuffers::Offset<schema::Sharding>>;
  using NamedShardings = flatbuffers::Vector<flatbuffers::Offset<schema::NamedSharding>>;
  using Indices = flatbuffers::Vector<std::uint32_t>;

  static Values arguments(const schema::Exported& e) {
    return {e.in_avals(),     e.in_avals_idxs(),     e.unique_avals(),
            e.in_shardings(), e.in_shardings_idxs(), e.unique_named_shardings()};
  }
  static Values results(const schema::Exported& e) {
    return {e.out_avals(),     e.out_avals_idxs(),     e.unique_avals(),
            e.out_shardings(), e.out_shardings_idxs(), e.unique_named_shardings()};
  }

  template <class Vector>
  static std::uint32_t length(const Vector* vector) {
    return vector ? vector->size() : 0;
  }

  bool avals_by_index() const { return length(aval_indices) > 0; }
  bool shardings_by_index() const { return length(sharding_indices) > 0; }
  std::uint32_t size() const { return avals_by_index() ? length(aval_indices) : length(avals); }
  std::uint32_t sharding_count() const { return shardings_by_index() ? length(sharding_indices) : length(shardings); }

  const schema::AbstractValue& aval(std::uint32_t i) const {
    return avals_by_index() ? *unique_avals->Get(aval_indices->Get(i)) : *avals->Get(i);
  }
  /// Null where the sharding is unspecified, or known only as an HloSharding.
  const schema::NamedSharding* named_sharding(std::uint32_t i) const {
    if (!shardings_by_index()) return shardings->Get(i)->named_sharding();
    const std::uint32_t index = sharding_indices->Get(i);
    return index == 0 ? nullptr : unique_named_shardings->Get(index - 1);
  }
  /// Null unless all that is known of the sharding is an xla.OpSharding.
  const flatbuffers::Vector<std::int8_t>* hlo_sharding(std::uint32_t i) const {
    if (shardings_by_index() || shardings->Get(i)->named_sharding()) return nullptr;
    return shardings->Get(i)->hlo_sharding_proto();
  }

  const Avals* avals;
  const Indices* aval_indices;
  const Avals* unique_avals;
  const Shardings* shardings;
  const Indices* sharding_indices;
  const NamedShardings* unique_named_shardings;
};

/// Newer artifacts list their meshes, and a sharding has an index. The artifact has to be checked.
inline const schema::AbstractMesh& mesh_of(const schema::NamedSharding& sharding, const schema::Exported& e) {
  const auto* meshes = e.unique_abstract_meshes();
  return Values::length(meshes) > 0 ? *meshes->Get(sharding.abstract_mesh_idx()) : *sharding.mesh();
}

/// 0 where an artifact has none, or a negative one.
inline std::uint32_t device_count(const schema::Exported& e) {
  if (e.nr_devices() != 0) return e.nr_devices();
  return static_cast<std::uint32_t>(std::max<std::int16_t>(e.nr_devices_short(), 0));
}

/// For range-based loops, the primal first. The artifact has to be verified.
class Chain {
 public:
  struct Link {
    std::size_t order;  // how many VJPs deep
    const schema::Exported& function;
  };

  class Iterator {
   public:
    explicit Iterator(const schema::Exported* function) : function_(function) {}

    Link operator*() const { return {order_, *function_}; }
    Iterator& operator++() {
      function_ = function_->vjp();
      ++order_;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return function_ == nullptr; }

   private:
    const schema::Exported* function_;
    std::size_t order_ = 0;
  };

  explicit Chain(const schema::Exported& root) : root_(&root) {}

  Iterator begin() const { return Iterator(root_); }
  std::default_sentinel_t end() const { return {}; }

 private:
  const schema::Exported* root_;
};

/// The path of a function's field for errors, such as "vjp.vjp.fun_name"; without a field, that of the function.
inline std::string path_in_chain(std::size_t order, std::string_view field = {}) {
  std::string path;
  for (std::size_t i = 0; i < order; ++i) path += i == 0 ? "vjp" : ".vjp";
  if (order > 0 && !field.empty()) path += '.';
  return path += field;
}

/// Whether a custom node is described in its auxiliary data.
inline bool is_library_node(const schema::PyTreeDef& node) {
  return node.custom_name()->string_view() == std::string_view("jaxexp.node");
}

}  // namespace jaxexp::wire

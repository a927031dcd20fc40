// One look at everything that an artifact describes in its own way.
#include "bindings/codec/later.h"

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "bindings/codec/symbolic.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/dimension.h"
#include "wire/exported/growth.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

namespace schema = wire::schema;
using wire::Values;

template <class Table>
std::uint64_t key_of(const Table& table) {
  return reinterpret_cast<std::uintptr_t>(&table);
}

class Look {
 public:
  Look(const schema::Exported& exported, const wire::Trailer* trailer, std::size_t buffer_size)
      : exported_(exported),
        has_constraints_(trailer && Values::length(trailer->content().constraints()) > 0),
        growth_(wire::max_symbolic_steps(buffer_size)) {}

  Later later() {
    const bool is_known = Values::length(exported_.ordered_effects()) == 0 &&
                          Values::length(exported_.unordered_effects()) == 0 && is_known_tree(*exported_.in_tree()) &&
                          is_known_tree(*exported_.out_tree()) && are_known(Values::arguments(exported_)) &&
                          are_known(Values::results(exported_));
    return {is_known, is_symbolic_};
  }

 private:
  bool is_known_tree(const schema::PyTreeDef& node) {
    if (node.kind() == schema::PyTreeDefKind::leaf) return true;
    if (node.kind() == schema::PyTreeDefKind::custom) return false;
    if (!seen_.insert(key_of(node)).second) return true;
    for (std::uint32_t i = 0; i < Values::length(node.children()); ++i)
      if (!is_known_tree(*node.children()->Get(i))) return false;
    return true;
  }

  bool are_known(const Values& values) {
    if (values.avals_by_index()) {
      for (std::uint32_t i = 0; i < values.unique_avals->size(); ++i)
        if (!is_known_aval(*values.unique_avals->Get(i))) return false;
    } else {
      for (std::uint32_t i = 0; i < values.size(); ++i)
        if (!is_known_aval(values.aval(i))) return false;
    }
    if (values.shardings_by_index() && Values::length(values.unique_named_shardings) == 0) return true;
    for (std::uint32_t i = 0; i < values.size(); ++i)
      if (values.named_sharding(i) || values.hlo_sharding(i)) return false;
    return true;
  }

  bool is_known_aval(const schema::AbstractValue& aval) {
    if (!seen_.insert(key_of(aval)).second) return true;
    if (aval.dtype() < schema::DType::MIN || aval.dtype() > schema::DType::MAX) return false;
    std::uint64_t shape = 1;
    for (std::uint32_t i = 0; i < Values::length(aval.shape()); ++i) {
      const flatbuffers::String& text = *aval.shape()->Get(i);
      const bool is_size = wire::is_size(text.string_view());
      if (!is_size && !is_known_dimension(text)) return false;
      shape = shape * 0x9E3779B97F4A7C15 + (is_size ? wire::SeededHash()(text.string_view()) : key_of(text));
    }
    if (Values::length(aval.shape()) > 1) shapes_.insert(shape | 1);
    return shapes_.size() <= wire::max_of_one_hash;  // only Python knows the hashes
  }

  bool is_known_dimension(const flatbuffers::String& text) {
    is_symbolic_ = true;
    if (has_constraints_) return false;
    if (!seen_.insert(key_of(text)).second) return true;  // many avals may share one long text
    if (!dimensions_.insert(text.string_view()).second) return true;
    try {
      const wire::Expression expression = wire::parse_dimension(text.string_view(), {});
      growth_.dimension(expression, {});
      return Symbolic::can_make(expression);
    } catch (const wire::Error&) {  // more than JAX may be asked to do
      return false;
    }
  }

  const schema::Exported& exported_;
  const bool has_constraints_;
  wire::Growth growth_;
  wire::FlatMap<bool> seen_;
  wire::FlatMap<wire::Nothing> shapes_;
  std::unordered_set<std::string_view, wire::SeededHash> dimensions_;
  bool is_symbolic_ = false;
};

}  // namespace

Later later(const schema::Exported& exported, const wire::Trailer* trailer, std::size_t buffer_size) {
  return Look(exported, trailer, buffer_size).later();
}

}  // namespace jaxexp::bindings

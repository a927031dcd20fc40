// Field by field; a table is not compared with itself.
#include "wire/exported/same.h"

#include <string>

#include "wire/exported/values.h"

namespace jaxexp::wire {

bool Comparison::same_aval(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path) {
  return &a == &b || (a.kind() == b.kind() && a.dtype() == b.dtype() && a.memory_space() == b.memory_space() &&
                      same_shape(a, b, path));
}

bool Comparison::same_shape(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path) {
  return same_strings(a.shape(), b.shape(), path);
}

bool Comparison::same_sharding(const schema::NamedSharding& copy, const schema::NamedSharding& checked,
                               const Path& path) {
  const schema::AbstractMesh *one = copy.mesh(), *other = checked.mesh();
  return copy.abstract_mesh_idx() == checked.abstract_mesh_idx() && copy.spec() &&
         (one == other || (one && other && same_mesh(*one, *other, path))) &&
         same_spec(*copy.spec(), *checked.spec(), path) && same_string(copy.memory_kind(), checked.memory_kind(), path);
}

bool Comparison::same_mesh(const schema::AbstractMesh& copy, const schema::AbstractMesh& checked, const Path& path) {
  if (&copy == &checked) return true;
  if (!same_numbers(copy.axis_sizes(), checked.axis_sizes(), path) ||
      !same_numbers(copy.axis_types(), checked.axis_types(), path) ||
      !same_strings(copy.axis_names(), checked.axis_names(), path))
    return false;
  const schema::AbstractDevice *one = copy.abstract_device(), *other = checked.abstract_device();
  if (one == other) return true;
  return one && other && one->num_cores() == other->num_cores() &&
         same_string(one->device_kind(), other->device_kind(), path) &&
         same_string(one->platform(), other->platform(), path);
}

template <class Numbers>
bool Comparison::same_numbers(const Numbers* a, const Numbers* b, const Path& path) {
  const std::uint32_t size = Values::length(a);
  if (a == b || size != Values::length(b)) return a == b;
  spend(1 + size, path);
  for (std::uint32_t i = 0; i < size; ++i)
    if (a->Get(i) != b->Get(i)) return false;
  return true;
}

bool Comparison::same_spec(const schema::PartitionSpec& a, const schema::PartitionSpec& b, const Path& path) {
  if (&a == &b) return true;
  const std::uint32_t partitions = Values::length(a.partitions());
  if (partitions != Values::length(b.partitions())) return false;
  for (std::uint32_t i = 0; i < partitions; ++i)
    if (!same_strings(a.partitions()->Get(i)->axes(), b.partitions()->Get(i)->axes(), path)) return false;
  return same_strings(a.reduced(), b.reduced(), path) && same_strings(a.unreduced(), b.unreduced(), path);
}

bool Comparison::same_strings(const Strings* a, const Strings* b, const Path& path) {
  spend(1, path);
  if (a == b) return true;
  if (Values::length(a) != Values::length(b)) return false;
  for (std::uint32_t i = 0; i < Values::length(a); ++i)
    if (!same_string(a->Get(i), b->Get(i), path)) return false;
  return true;
}

bool Comparison::same_string(const flatbuffers::String* a, const flatbuffers::String* b, const Path& path) {
  spend(1, path);
  if (a == b) return true;
  if (!a || !b || a->size() != b->size()) return false;
  spend(a->size() / 8, path);
  return a->string_view() == b->string_view();
}

void Comparison::refuse(const Path& path) const {
  throw Error(path, "tables that can be compared in " + std::to_string(most_) + " steps", "more");
}

}  // namespace jaxexp::wire

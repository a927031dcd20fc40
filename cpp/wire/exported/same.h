// Whether tables that have passed the checks of their own say the same.
#pragma once

#include <cstdint>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/exported/requirements.h"

namespace jaxexp::wire {

/// Comparing takes a limited number of steps over all tables of an artifact; beyond it, everything throws Error.
class Comparison {
 public:
  explicit Comparison(std::uint64_t most) : most_(most) {}

  bool same_aval(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path);
  bool same_shape(const schema::AbstractValue& a, const schema::AbstractValue& b, const Path& path);
  /// Whether a copy is alike in every field; both name their mesh by index, if the artifact lists its meshes.
  bool same_sharding(const schema::NamedSharding& copy, const schema::NamedSharding& checked, const Path& path);
  /// Of these two, only the second need have passed the check of meshes.
  bool same_mesh(const schema::AbstractMesh& copy, const schema::AbstractMesh& checked, const Path& path);
  bool same_spec(const schema::PartitionSpec& a, const schema::PartitionSpec& b, const Path& path);
  bool same_strings(const Strings* a, const Strings* b, const Path& path);
  bool same_string(const flatbuffers::String* a, const flatbuffers::String* b, const Path& path);

  void spend(std::uint64_t steps, const Path& path) {
    if ((spent_ += steps) > most_) refuse(path);
  }

 private:
  template <class Numbers>
  bool same_numbers(const Numbers* a, const Numbers* b, const Path& path);
  [[noreturn]] void refuse(const Path& path) const;

  const std::uint64_t most_;
  std::uint64_t spent_ = 0;
};

}  // namespace jaxexp::wire

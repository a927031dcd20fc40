// Meshes, and shardings over them.
#pragma once

#include <cstdint>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/same.h"
#include "wire/exported/seen.h"

namespace jaxexp::wire {

class ShardingCheck {
 public:
  /// `root` is for errors.
  ShardingCheck(const schema::Exported& root, Comparison& comparison)
      : root_(root), comparison_(comparison), specs_of_meshes_(&root) {}

  /// A sharding that a VJP shares with its primal has to make sense among the VJP's own meshes as well.
  void begin_function() { named_shardings_ = {}, shardings_ = {}; }

  /// Returns how many devices a mesh is of; that stops growing just above what a device count can be.
  std::uint64_t mesh(const schema::AbstractMesh& mesh, const Path& path);
  void named_sharding(const schema::NamedSharding& sharding, const schema::Exported& e, const Path& path);
  void sharding(const schema::Sharding& sharding, const schema::Exported& e, const Path& path);

 private:
  /// Every axis has to be the mesh's, and may be used once.
  void spec(const schema::PartitionSpec& spec, const schema::AbstractMesh& mesh, const Path& path);

  const schema::Exported& root_;
  Comparison& comparison_;
  FlatMap<std::uint64_t> meshes_;  // how many devices each is of
  Seen named_shardings_, shardings_;
  SeenPairs specs_of_meshes_;
};

}  // namespace jaxexp::wire

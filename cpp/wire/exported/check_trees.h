// The trees of arguments and results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exported_generated.h"
#include "wire/base/error.h"
#include "wire/base/flat_map.h"
#include "wire/exported/limits.h"

namespace jaxexp::wire {

class TreeCheck {
 public:
  /// `root` is for errors.
  TreeCheck(const schema::Exported& root, std::size_t buffer_size)
      : root_(root),
        max_nodes_(max_tree_nodes(buffer_size)),
        max_key_bytes_(max_tree_key_bytes(buffer_size)),
        max_auxdata_bytes_(max_tree_auxdata_bytes(buffer_size)) {}

  void begin_function() { nodes_ = 0; }

  /// A function takes positional and keyword arguments: a pair of a tuple and a dict.
  void arguments(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path);
  void results(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path) { whole(root, avals, path); }

 private:
  struct Tree {
    std::uint64_t leaves = 0;
    std::uint64_t nodes = 0;  // by weight
    std::uint64_t depth = 0;
    std::uint64_t key_bytes = 0;  // what comparing its dicts' keys reads
    std::uint64_t auxdata_bytes = 0;
  };

  void whole(const schema::PyTreeDef* root, std::uint32_t avals, const Path& path);
  /// Counts in a tree; they stop growing just above their limits, so they can't overflow.
  Tree tree(const schema::PyTreeDef& node, const Path& path);
  /// Dicts may share their keys, so what comparing them takes is limited, over all dicts here and for a whole tree.
  std::uint64_t keys(const schema::PyTreeDef& dict, std::uint32_t arity, const Path& path);
  [[noreturn]] void refuse_keys(const Path& path) const;

  const schema::Exported& root_;
  const std::uint64_t max_nodes_;
  const std::uint64_t max_key_bytes_;
  const std::uint64_t max_auxdata_bytes_;
  std::uint64_t nodes_ = 0;  // of the trees of a function
  std::uint64_t key_bytes_ = 0;
  FlatMap<Tree> trees_;
};

}  // namespace jaxexp::wire

// The names of the children of custom nodes, from what their auxiliary data says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exported_generated.h"
#include "wire/base/flat_map.h"

namespace jaxexp::wire {

/// The step to the value of a key, which is quoted as Python does, but for the choice of characters that are shown as
/// they are.
std::string key_step(std::string_view key);

/// Reads auxiliary data once, however many nodes share it. `jaxexp/_kernel/artifact/node.py` does the same.
class ChildSteps {
 public:
  /// The step to a child of a custom node: ".weight", "['a']", or "<0>" where the data does not name the children.
  std::string step(const schema::PyTreeDef& node, std::uint32_t i);

 private:
  FlatMap<std::vector<std::string>> known_;
};

}  // namespace jaxexp::wire

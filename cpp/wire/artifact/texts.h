// What an artifact says in texts that only Python reads (jaxexp/_kernel/artifact/texts.py), for whoever verifies it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/artifact/opened.h"

namespace jaxexp::wire {

/// Copies, which stay when the artifact goes.
struct Texts {
  /// A custom node whose data is in a form of jaxexp or of JAX itself.
  struct Node {
    std::string path, name, data;
    std::uint32_t children;
  };

  std::vector<std::pair<std::string, std::string>> metadata;  // the user's, values are JSON
  std::vector<Node> nodes;                                    // of all functions; each once that says the same

  bool empty() const { return metadata.empty() && nodes.empty(); }
};

Texts texts_of(const Opened& opened);

}  // namespace jaxexp::wire

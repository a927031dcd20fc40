// Which of the format's slots are filled: that depends on who is to read the artifact.
#pragma once

#include <cstdint>

namespace jaxexp::bindings {

/// Which slots an artifact fills. The slots that readers since JAX 0.9.1 use are always filled; the others are chosen
/// here.
struct Form {
  /// Readers before 0.8.2 refuse all numbers but their own; later ones accept any, and go by the slots.
  std::uint16_t serialization_version = 12;  // what JAX 0.11.1 and newer write
  bool short_device_count = false;           // what readers before 0.8.2 know, beside the 32-bit one
  bool hlo_shardings = false;                // what readers before 0.9.0 know, beside NamedShardings
};

}  // namespace jaxexp::bindings

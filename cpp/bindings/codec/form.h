// Which of the format's slots are filled: that depends on who is to read the artifact.
#pragma once

#include <cstdint>

namespace jaxexp::bindings {

/// What an artifact says in which slots. What is not set here is for the readers since JAX 0.9.1; their slots are
/// always written.
struct Form {
  /// Readers before 0.8.2 refuse all numbers but their own; later ones accept any, and go by the slots.
  std::uint16_t serialization_version = 12;  // what JAX 0.11.1 and newer write
  bool short_device_count = false;           // what readers before 0.8.2 know, beside the 32-bit one
  bool hlo_shardings = false;                // what readers before 0.9.0 know, beside NamedShardings
};

}  // namespace jaxexp::bindings

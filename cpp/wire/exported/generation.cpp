// The history of the layout, as far as an artifact shows it:
//
//   0.4.22   base layout: version 1, 16-bit device count, shardings as xla.OpSharding
//   0.4.24   version 2
//   0.8.2    version 3; 32-bit device count beside the short one; memory spaces
//   0.9.0    NamedSharding beside the xla.OpSharding
//   0.9.1    the short device count is gone
//   0.10.0   distinct avals, meshes and shardings, and indices into them; the xla.OpSharding is gone
//   0.10.1   AbstractDevice.platform
//   0.11.1   version 12, jax_version
#include "wire/exported/generation.h"

#include "wire/base/error.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

std::string_view writer(const schema::Exported& e) {
  if (e.jax_version()) return "0.11.1 or newer";
  if (e.unique_avals()) {
    for (std::uint32_t i = 0; i < Values::length(e.unique_abstract_meshes()); ++i)
      if (const auto* device = e.unique_abstract_meshes()->Get(i)->abstract_device())
        return device->platform() ? "0.10.1 to 0.11.0" : "0.10.0";
    return "0.10.0 to 0.11.0";
  }
  if (e.nr_devices() == 0) return e.serialization_version() < 2 ? "0.4.22 to 0.4.23" : "0.4.24 to 0.8.1";
  return e.nr_devices_short() == 0 ? "0.9.1 to 0.9.2" : "0.8.2 to 0.9.0.1";
}

std::string unknown(int number, const schema::Exported& e) {
  std::string text = std::to_string(number) + ", which is unknown here: ";
  if (const auto* version = e.jax_version())
    text += "the artifact was written by JAX " + shortened(version->string_view()) + "; read it";
  else
    text += "the artifact is damaged, or was written by a newer JAX or jaxexp; read it";
  return text + " with a jaxexp that knows it";
}

}  // namespace jaxexp::wire

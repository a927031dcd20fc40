// Effect <-> a JAX effect, which Python names and finds by name.
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

Offset<schema::Effect> Encoder::effect(nb::handle effect) {
  return schema::CreateEffect(writer_.fbb(), string(jax_.effect_name(effect), "the name of an effect"));
}

nb::object Decoder::effect(const schema::Effect& effect, const wire::Path& where) {
  shareable_ = false;
  return placing(where, [&] { return jax_.effect_of_name(string(*effect.type_name())); });
}

}  // namespace jaxexp::bindings

// DisabledSafetyCheck <-> the Python class of that name.
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"

namespace jaxexp::bindings {

Offset<schema::DisabledSafetyCheck> Encoder::safety_check(nb::handle check) {
  using Kind = schema::DisabledSafetyCheckKind;
  const nb::object target = jax_.safety_check_target(check);
  if (target.is_none()) return schema::CreateDisabledSafetyCheck(writer_.fbb(), Kind::platform);
  const auto name = string(target, "the target of a custom call");
  return schema::CreateDisabledSafetyCheck(writer_.fbb(), Kind::custom_call, name);
}

nb::object Decoder::safety_check(const schema::DisabledSafetyCheck& check, const wire::Path& where) {
  const nb::object target = check.custom_call_target() ? string(*check.custom_call_target()) : nb::none();
  return reading(where, "a safety check", [&] { return jax_.safety_check(static_cast<int>(check.kind()), target); });
}

}  // namespace jaxexp::bindings

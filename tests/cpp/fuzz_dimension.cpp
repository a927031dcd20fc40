// Fuzz target: the text of a dimension is refused, or has one canonical form.
#include <string>

#include "target.h"
#include "wire/base/error.h"
#include "wire/exported/constraint.h"
#include "wire/exported/dimension.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace jaxexp;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!tests::is_utf8(text)) return 0;  // which verification refuses
  try {
    const std::string form = wire::canonical(wire::parse_dimension(text, {}));
    tests::require(tests::is_utf8(form), "a canonical form is UTF-8");
  } catch (const wire::Error& error) {
    tests::require(!error.expected.empty() && tests::is_utf8(error.found) && error.found.size() < 1000,
                   "an error can be shown");
  }
  try {
    wire::parse_constraint(text, {});
  } catch (const wire::Error&) {
    return 0;
  }
  return 0;
}

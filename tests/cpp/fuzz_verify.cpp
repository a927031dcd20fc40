// Fuzz target: any bytes are either an artifact that makes sense or refused with one error that can be shown.
#include <cstdlib>
#include <optional>
#include <string>

#include "target.h"
#include "wire/base/error.h"
#include "wire/exported/check.h"
#include "wire/exported/verify.h"

namespace {

using namespace jaxexp;

std::optional<wire::Error> refusal(std::span<const std::uint8_t> bytes) {
  try {
    wire::check(wire::verify(bytes), bytes.size());
    return std::nullopt;
  } catch (const wire::Error& error) {
    return error;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto error = refusal({data, size});
  if (!error) return 0;
  tests::require(!error->expected.empty() && !error->found.empty(), "an error says what was expected and found");
  for (const std::string& text : {error->path, error->expected, error->found})
    tests::require(text.size() < 1000 && tests::is_utf8(text), "an error's texts are short and can be shown");
  return 0;
}

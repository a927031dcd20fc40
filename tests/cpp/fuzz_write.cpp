// Fuzz target: what was accepted can be written again, and says the same.
#include <vector>

#include "rebuild.h"
#include "target.h"
#include "view.h"
#include "wire/base/error.h"
#include "wire/exported/check.h"
#include "wire/exported/verify.h"

using namespace jaxexp;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  const wire::schema::Exported* root = nullptr;
  try {
    root = &wire::verify(bytes);
    wire::check(*root, size);
  } catch (const wire::Error&) {
    return 0;
  }
  const tests::Content content = tests::view(*root);
  if (!tests::is_within_any_limit(content)) return 0;
  const std::vector<std::uint8_t> written = tests::rebuild(*root);
  const auto& read = wire::verify(written);
  wire::check(read, written.size());
  tests::require(tests::view(read).digest == content.digest, "what was written says the same");
  tests::require(tests::rebuild(read) == written, "writing it once more gives the same bytes");
  return 0;
}

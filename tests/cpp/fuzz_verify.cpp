// Fuzz target: any bytes are either an artifact that makes sense or refused with one error that can be shown.
// Everything in what was accepted can be read, other judges agree that it is one, and it can be written again and says
// the same.
#include <vector>

#include "errors.h"
#include "rebuild.h"
#include "view.h"
#include "wire/exported/check.h"
#include "wire/exported/generation.h"
#include "wire/exported/values.h"

namespace {

using namespace jaxexp;
using wire::schema::Exported;

/// What verification leaves to the semantic pass: each value leads to an aval and to the sharding that it says.
void read_values(const wire::Values& values) {
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    static_cast<void>(values.aval(i).dtype());
    if (const auto* sharding = values.named_sharding(i)) tests::require(sharding->spec(), "a sharding has its spec");
    static_cast<void>(values.hlo_sharding(i));
  }
}

/// The verifier that flatc generates follows shared tables as often as they are referred to, so it judges small ones.
bool within_its_reach(const tests::Content& content) {
  return content.tables < 20'000 && content.elements < 500'000 && content.bytes < 2'000'000;
}

bool generated_verifier_accepts(std::span<const std::uint8_t> bytes) {
  flatbuffers::Verifier::Options options;
  options.max_depth = 2000;
  options.max_tables = 100'000;
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), options);
  return wire::schema::VerifyExportedBuffer(verifier);
}

void write_again(const Exported& root, const tests::Content& content) {
  const std::vector<std::uint8_t> written = tests::rebuild(root);
  const auto& read = wire::verify(written);
  wire::check(read, written.size());
  tests::require(tests::view(read).digest == content.digest, "what was written says the same");
  tests::require(tests::rebuild(read) == written, "writing it once more gives the same bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  const Exported* root = nullptr;
  if (!tests::attempt([&] { root = &wire::verify(bytes); })) return 0;
  // The layout is enough for reading every field...
  const tests::Content content = tests::view(*root);
  if (within_its_reach(content))
    tests::require(generated_verifier_accepts(bytes), "the generated verifier accepts what this one does");
  tests::require(root == &wire::verify(bytes), "a second look finds the same");
  if (!tests::attempt([&] { wire::check(*root, size); })) return 0;
  // ...and the semantic pass for following every index.
  for (const Exported* e = root; e; e = e->vjp()) {
    tests::require(e->function_name() && e->mlir_module_serialized() && e->in_tree() && e->out_tree(),
                   "required fields");
    tests::require(wire::device_count(*e) > 0, "there are devices");
    read_values(wire::Values::arguments(*e));
    read_values(wire::Values::results(*e));
    tests::require(!wire::writer(*e).empty(), "a writer is named");
  }
  wire::check(*root, size);  // which throws nothing the second time either
  tests::require(tests::view(*root).digest == content.digest, "reading changes nothing");
  if (tests::is_within_any_limit(content)) write_again(*root, content);
  return 0;
}

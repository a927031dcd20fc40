// Fuzz target: an artifact with a trailer, read as the codec reads it: as it is, and with digests that are right. Its
// cases are read as C++ programs read them, too.
#include <jaxexp/artifact.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "errors.h"
#include "rebuild.h"
#include "seal.h"
#include "view.h"
#include "wire/artifact/trailer.h"
#include "wire/base/digest.h"
#include "wire/base/unaligned.h"
#include "wire/exported/check.h"
#include "wire/exported/values.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

wire::Notes notes_of(const wire::schema::Trailer& trailer) {
  wire::Notes notes{trailer.writer()->str(), {}, {}, {}};
  if (trailer.constraints())
    for (const auto* constraint : *trailer.constraints()) notes.constraints.push_back(constraint->str());
  if (trailer.metadata())
    for (const auto* entry : *trailer.metadata())
      notes.metadata.emplace_back(entry->key()->str(), entry->value()->str());
  for (const auto* function : *trailer.functions()) {
    const auto indices = [](const flatbuffers::Vector<std::uint32_t>* numbers) {
      return numbers ? std::vector<std::uint32_t>(numbers->begin(), numbers->end()) : std::vector<std::uint32_t>();
    };
    notes.functions.push_back({indices(function->weak_arguments()), indices(function->weak_results())});
  }
  if (trailer.weights()) notes.weights = wire::read_weights(*trailer.weights());
  if (trailer.cases()) notes.cases = wire::read_cases(*trailer.cases());
  return notes;
}

/// The public reader shows the same cases, whose arrays are in the artifact, in a file, or described.
void show_cases(const Bytes& bytes, const std::optional<wire::Cases>& read) {
  const Cases cases = Artifact(bytes).cases();
  tests::require(cases.all.size() == (read ? read->cases.size() : 0), "all cases are shown");
  for (std::size_t i = 0; i < cases.all.size(); ++i) {
    const Case& one = cases.all[i];
    const wire::Cases::Case& other = read->cases[i];
    tests::require(one.name == other.name && one.vjp_order == other.order, "a case is what it was");
    tests::require(one.recording < cases.recordings.size(), "a case was recorded somewhere");
    tests::require(one.arguments.size() == other.arguments.size() && one.results.size() == other.results.size(),
                   "a case has its arguments and results");
    const auto all = [&](const std::vector<Case::Value>& values, const std::vector<wire::Cases::Value>& others) {
      for (std::size_t k = 0; k < values.size(); ++k) {
        const Case::Value& value = values[k];
        const auto& data = others[k].data;
        tests::require(std::ranges::equal(value.shape, others[k].shape), "a shape is what it was");
        tests::require(!data || std::ranges::equal(value.data, std::as_bytes(std::span(data->bytes)), {},
                                                   [](std::uint8_t byte) { return std::byte{byte}; }),
                       "numbers are what they were");
        tests::require(value.tensor.has_value() + value.drawn.has_value() + (data ? 1 : 0) == 1, "and somewhere");
        tests::require(!value.tensor || *value.tensor < cases.tensors.size(), "a tensor is in the table");
      }
    };
    all(one.arguments, other.arguments);
    all(one.results, other.results);
  }
  for (const Weights::Tensor& tensor : cases.tensors)
    tests::require(tensor.file < cases.files.size(), "a tensor is in a file");
  if (cases.all.empty()) return;
  const auto end = wire::load<std::uint32_t>(bytes.data() + 12);  // as docs/formats/artifact.md has it
  tests::require(std::ranges::equal(cases.digest, std::span(bytes).subspan(end - 24, cases.digest.size())),
                 "the digest is what the artifact ends with");
}

/// What a trailer says, where all of the artifact can be read.
std::optional<wire::Notes> read(const Bytes& bytes) {
  try {
    const auto trailer = wire::Trailer::read(bytes);
    if (!trailer) return std::nullopt;
    const auto artifact = trailer->artifact();
    tests::require(artifact.data() == bytes.data() && artifact.size() < bytes.size(), "the artifact is in front");
    const auto& root = wire::verify(artifact);
    wire::check(root, artifact.size());
    trailer->check(root);
    std::size_t order = 0;
    const auto check_module = [](const wire::Trailer& trailer, const wire::schema::Exported& e, std::size_t order) {
      const auto& module = *e.mlir_module_serialized();
      trailer.check_module(wire::digest({module.Data(), module.size()}), order);
    };
    for (const auto* e = &root; e; e = e->vjp(), ++order) check_module(*trailer, *e, order);
    const wire::Notes notes = notes_of(trailer->content());
    show_cases(bytes, notes.cases);
    tests::require(notes.functions.size() == order, "there are notes on each function");
    for (const std::string& text : notes.constraints) tests::require(tests::is_utf8(text), "constraints are UTF-8");
    for (const auto& [key, value] : notes.metadata)
      tests::require(tests::is_utf8(key) && tests::is_utf8(value), "metadata are UTF-8");
    tests::require(std::ranges::is_sorted(notes.metadata), "metadata are in order");

    // Written again, they say the same, wherever the content is within the limits of any buffer.
    const tests::Content content = tests::view(root);
    if (tests::is_within_any_limit(content)) {
      const Bytes written = tests::rebuild(root, SIZE_MAX, &notes);
      const auto again = wire::Trailer::read(written);
      tests::require(again.has_value(), "what was written has a trailer");
      const auto& rebuilt = wire::verify(again->artifact());
      wire::check(rebuilt, again->artifact().size());
      again->check(rebuilt);
      check_module(*again, rebuilt, 0);
      tests::require(tests::view(rebuilt).digest == content.digest, "what was written says the same");
      const wire::Notes notes_again = notes_of(again->content());
      tests::require(tests::rebuild(rebuilt, SIZE_MAX, &notes_again) == written, "and so does its trailer");
    }
    return notes;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, data + size);
  bytes.shrink_to_fit();
  read(bytes);
  const auto [metadata, content] = tests::sizes_of(bytes);
  if (!tests::seal(bytes, metadata, content)) return 0;
  const auto notes = read(bytes);
  if (!notes) return 0;
  // Sealed and read: then each bit counts.
  const std::size_t bit = (metadata * 31 + content * 17 + size) % (8 * bytes.size());
  bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
  tests::require(!read(bytes), "a changed bit is noticed");
  return 0;
}

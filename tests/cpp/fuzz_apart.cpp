// Fuzz target: an artifact whose modules are cut out and put back, and its image, damaged on purpose, with digests that
// are right.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "errors.h"
#include "seal.h"
#include "view.h"
#include "wire/artifact/apart.h"
#include "wire/base/digest.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;
using Modules = std::vector<wire::Opened::Bytes>;

Modules modules_of(const wire::Opened& opened) {
  Modules modules;
  for (const auto* e = &opened.root(); e; e = e->vjp()) modules.push_back(opened.module(*e, modules.size()));
  return modules;
}

/// Reads all of an image, and puts it together again.
std::optional<Bytes> join(const Bytes& image, const Modules& modules) {
  try {
    const wire::Opened opened(image, modules);
    static_cast<void>(tests::view(opened.root()));
    std::size_t order = 0;
    for (const auto* e = &opened.root(); e; e = e->vjp(), ++order) {
      tests::require(e->mlir_module_serialized()->size() == 0, "an image has no modules");
      opened.check_module(*e, order);
    }
    tests::require(order == modules.size(), "there is a module for each function");
    const wire::Joined joined(image, modules);
    Bytes artifact(joined.size());
    joined.write(artifact.data());
    return artifact;
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return std::nullopt;
  }
}

void put(Bytes& bytes, std::size_t at, const wire::Digest& digest) { std::memcpy(&bytes[at], digest.data(), 16); }

/// As schema/trailer.fbs has it, and by no code of the reader's.
void seal_image(Bytes& image, std::size_t metadata_size, std::size_t start) {
  put(image, image.size() - 48, wire::digest({image.data(), metadata_size}));
  put(image, image.size() - 24, wire::digest({image.data() + start, image.size() - 24 - start}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, data + size);
  const auto [metadata, content] = tests::sizes_of(bytes);
  if (!tests::seal(bytes, metadata, content)) return 0;
  Bytes image;
  Modules modules;
  try {
    modules = modules_of(wire::Opened(bytes));
    image = wire::cut(bytes);
  } catch (const wire::Error& error) {
    tests::check_error(error);
    return 0;
  }
  image.shrink_to_fit();
  tests::require(join(image, modules) == bytes, "an image and its modules are the artifact again");

  // What the input says is changed: places in metadata and trailer, with digests that fit.
  const std::size_t start = image.size() - 64 - content;
  std::uint64_t seed = 1469598103934665603u;
  for (const std::uint8_t byte : bytes) seed = (seed ^ byte) * 1099511628211u;
  for (int round = 0; round < 8; ++round) {
    Bytes changed = image;
    for (int change = 0; change <= round % 3; ++change) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const std::size_t place = (seed >> 33) % (metadata + content);
      changed[place < metadata ? place : start + place - metadata] ^= static_cast<std::uint8_t>(1u << (seed >> 29) % 8);
    }
    tests::require(changed == image || !join(changed, modules), "a changed byte is noticed");
    seal_image(changed, metadata, start);
    if (const auto artifact = join(changed, modules))
      tests::require(std::ranges::equal(std::span(*artifact).first(metadata), std::span(bytes).first(metadata)),
                     "metadata are put together to what they were");
  }
  return 0;
}

// Fuzz target: artifacts that are opened beside others of the same metadata end as they do by themselves.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "seal.h"
#include "target.h"
#include "view.h"
#include "wire/artifact/opened.h"
#include "wire/base/error.h"

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;

/// What an artifact says, or what is wrong with it.
template <class Open>
std::tuple<std::string, std::string, std::string, std::uint64_t> outcome(const Open& open) {
  try {
    std::optional<wire::Opened> opened;
    open(opened);
    return {"", "", "", tests::view(opened->root()).digest};
  } catch (const wire::Error& error) {
    return {error.path, error.expected, error.found, 0};
  }
}

void put(Bytes& bytes, std::size_t at, std::uint32_t number) {
  if (at <= bytes.size() && bytes.size() - at >= sizeof number) std::memcpy(bytes.data() + at, &number, sizeof number);
}

/// The same metadata in front of other modules: a byte of these is changed, their length, or how many bytes there are.
std::vector<Bytes> siblings(const Bytes& bytes) {
  const tests::Sizes sizes = tests::sizes_of(bytes);
  const std::size_t metadata = sizes.metadata, content = sizes.content;
  const std::size_t end = bytes.size() - std::min(bytes.size(), content + 48);
  std::vector<Bytes> made;
  const auto add = [&](Bytes sibling) {
    sibling.shrink_to_fit();
    if (tests::seal(sibling, std::min(metadata, sibling.size()), content)) made.push_back(std::move(sibling));
  };
  if (metadata >= end) return made;
  for (const std::size_t at : {metadata + 4, (metadata + end) / 2}) {
    Bytes changed = bytes;
    if (at < end) changed[at] ^= 0x55;
    add(std::move(changed));
  }
  for (const std::uint32_t length : {0u, 1u, 4u, static_cast<std::uint32_t>(bytes.size()), 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    Bytes changed = bytes;
    put(changed, metadata, length);
    add(std::move(changed));
  }
  for (const std::size_t cut : {std::size_t{4}, std::size_t{64}, end - metadata}) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(cut, end - metadata) / 4 * 4);
    Bytes shorter = bytes, longer = bytes;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(end) - count,
                  shorter.begin() + static_cast<std::ptrdiff_t>(end));
    longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(end), static_cast<std::size_t>(count), 0);
    add(std::move(shorter));
    add(std::move(longer));
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, data + size);
  bytes.shrink_to_fit();
  const auto [metadata, content] = tests::sizes_of(bytes);
  tests::seal(bytes, metadata, content);
  wire::MetadataCache known;  // keeps views into what it was given first
  const std::vector<Bytes> others = siblings(bytes);
  std::vector<const Bytes*> all{&bytes};
  for (const Bytes& other : others) all.push_back(&other);
  if (size % 2 == 1) std::ranges::reverse(all);
  for (const Bytes* one : all) {
    const auto alone = outcome([&](auto& opened) { opened.emplace(*one); });
    for (int round = 0; round < 2; ++round) {
      const auto beside = outcome([&](auto& opened) { known.open(*one, {}, opened); });
      tests::require(alone == beside, "an artifact is what it is alone");
    }
  }
  return 0;
}

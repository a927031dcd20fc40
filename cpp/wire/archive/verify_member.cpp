// One pass over the bytes of a member that is right; a second pass finds out what is wrong with another.
#include "wire/archive/verify_member.h"

#include <cstring>
#include <optional>

#include "wire/artifact/opened.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/exported/chain.h"

namespace jaxexp::wire {

namespace {

/// The bytes where numbers in them can be read: a copy where they are not aligned as artifacts are, which is what a
/// range of a file may be.
std::span<const std::uint8_t> in_place_or_moved(std::span<const std::uint8_t> bytes, std::vector<std::uint64_t>& copy) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) == 0) return bytes;
  copy.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const std::uint8_t*>(copy.data()), bytes.size()};
}

}  // namespace

Texts verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                    const ModuleDigests& modules, Known& known, std::vector<std::uint64_t>& aligned) {
  const schema::Member& member = index.member(number);
  const schema::Place& place = *member.place();
  if (bytes.size() != std::size_t{place.header()} + place.size())
    throw Error({}, std::to_string(place.size()) + " bytes", std::to_string(bytes.size()));
  const auto artifact = in_place_or_moved(bytes.subspan(place.header()), aligned);
  std::vector<Opened::Bytes> apart;
  if (place.apart())  // by their sizes only: their bytes are what the digests were made of
    for (const schema::Module* module : *member.modules())
      apart.emplace_back(static_cast<const std::uint8_t*>(nullptr), module->size());
  std::optional<Opened> opened;
  known.open(artifact, apart, opened);
  if (place.apart()) {
    for (const auto& [order, function] : Chain(opened->root())) {
      const schema::Module& module = *member.modules()->Get(static_cast<std::uint32_t>(order));
      opened->trailer()->check_module(modules.at({module.position(), module.size()}), order);
    }
  } else if (digest(artifact) != stored(*member.digest())) {
    for (const auto& [order, function] : Chain(opened->root())) opened->check_module(function, order);
    throw Error({}, "the bytes as they were added to the archive", "others; get another copy of it");
  }
  if (!place.shared()) index.check_header(number, bytes.first(place.header()));
  return texts_of(*opened);
}

}  // namespace jaxexp::wire

// One pass over the bytes of a member that is right; a second pass finds out what is wrong with another.
#include "wire/archive/verify_member.h"

#include <optional>

#include "wire/artifact/opened.h"
#include "wire/artifact/stored_digest.h"
#include "wire/base/digest.h"
#include "wire/base/error.h"
#include "wire/exported/chain.h"

namespace jaxexp::wire {

void verify_member(const ArchiveIndex& index, std::uint32_t number, std::span<const std::uint8_t> bytes,
                   std::span<const std::span<const std::uint8_t>> modules, Known& known) {
  const schema::Member& member = index.member(number);
  const schema::Place& place = *member.place();
  if (bytes.size() != std::size_t{place.header()} + place.size())
    throw Error({}, std::to_string(place.size()) + " bytes", std::to_string(bytes.size()));
  const auto artifact = bytes.subspan(place.header());
  std::optional<Opened> opened;
  known.open(artifact, modules, opened);
  if (place.apart() || digest(artifact) != stored(*member.digest())) {
    for (const auto& [order, function] : Chain(opened->root())) opened->check_module(function, order);
    if (!place.apart())
      throw Error({}, "the bytes as they were added to the archive", "others; get another copy of it");
  }
  if (!place.shared()) index.check_header(number, bytes.first(place.header()));
}

}  // namespace jaxexp::wire

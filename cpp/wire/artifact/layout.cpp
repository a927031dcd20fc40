// The head of an artifact.
#include "wire/artifact/layout.h"

#include <flatbuffers/flatbuffers.h>

#include <algorithm>

namespace jaxexp::wire {

void write_head(std::uint8_t* artifact, std::size_t end, bool image) {
  std::uint8_t* const head = artifact + sizeof(flatbuffers::uoffset_t);
  std::ranges::copy(image ? image_mark : mark, head);
  flatbuffers::WriteScalar(head + mark.size(), static_cast<std::uint32_t>(end));
}

}  // namespace jaxexp::wire

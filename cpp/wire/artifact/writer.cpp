// The parts of Writer that are no templates, and the head of an artifact.
#include "wire/artifact/writer.h"

#include <algorithm>
#include <limits>

#include "wire/exported/limits.h"

namespace jaxexp::wire {

void Writer::reserve(std::size_t size) const {
  constexpr std::size_t largest_table = 256;
  if (size + fbb_.GetSize() + largest_table >= max_buffer_size) throw TooLarge();
}

Layout Writer::finish(Offset<schema::Exported> root, bool trailed) {
  // Written as numbers, because those are aligned: nothing comes between them and the root offset.
  if (trailed)
    for (std::size_t size = 0; size < head_size; size += sizeof(std::uint32_t)) fbb_.PushElement(std::uint32_t{0});
  fbb_.Finish(root);
  std::uint8_t* const metadata = fbb_.GetBufferPointer();
  Layout layout{{metadata, fbb_.GetSize()}, {}, fbb_.GetSize()};
  for (auto module = modules_.rbegin(); module != modules_.rend(); ++module) {
    const std::size_t end = layout.size + sizeof(flatbuffers::uoffset_t) + module->bytes.size();
    if (end >= max_buffer_size) throw TooLarge();
    auto* owner = reinterpret_cast<flatbuffers::Table*>(metadata + fbb_.GetSize() - module->owner.o);
    std::uint8_t* field = owner->GetAddressOf(schema::Exported::VT_MLIR_MODULE_SERIALIZED);
    const auto distance = layout.size - static_cast<std::size_t>(field - metadata);
    flatbuffers::WriteScalar(field, static_cast<flatbuffers::uoffset_t>(distance));
    layout.modules.push_back(module->bytes);
    layout.size = end + padding(end);
  }
  return layout;
}

void write_head(std::uint8_t* artifact, std::size_t end, bool image) {
  std::uint8_t* const head = artifact + sizeof(flatbuffers::uoffset_t);
  std::ranges::copy(image ? image_mark : mark, head);
  flatbuffers::WriteScalar(head + mark.size(), static_cast<std::uint32_t>(end));
}

void Writer::set_end(std::size_t end) {
  if (end > std::numeric_limits<std::uint32_t>::max()) throw TooLarge();
  write_head(fbb_.GetBufferPointer(), end);
}

}  // namespace jaxexp::wire

#include "wire/base/protobuf.h"

namespace jaxexp::wire::protobuf {
namespace {

std::optional<std::string_view> take(std::string_view& message, std::optional<std::uint64_t> size) {
  if (!size || *size > message.size()) return std::nullopt;
  const auto taken = message.substr(0, *size);
  message.remove_prefix(*size);
  return taken;
}

}  // namespace

std::optional<std::uint64_t> varint(std::string_view& message) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto next = take(message, 1);
    if (!next) break;
    const auto byte = static_cast<std::uint8_t>(next->front());
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

std::optional<std::vector<Field>> fields(std::string_view message) {
  std::vector<Field> found;
  while (!message.empty()) {
    const auto tag = varint(message);
    if (!tag) return std::nullopt;
    Field& field = found.emplace_back(Field{*tag >> 3, static_cast<Field::Type>(*tag & 7), 0, {}});
    if (field.type == Field::varint) {
      const auto value = varint(message);
      if (!value) return std::nullopt;
      field.value = *value;
      continue;
    }
    std::optional<std::uint64_t> size;
    switch (field.type) {
      case Field::eight_bytes: size = 8; break;
      case Field::with_length: size = varint(message); break;
      case Field::four_bytes: size = 4; break;
      default: return std::nullopt;
    }
    const auto bytes = take(message, size);
    if (!bytes) return std::nullopt;
    field.bytes = *bytes;
  }
  return found;
}

}  // namespace jaxexp::wire::protobuf

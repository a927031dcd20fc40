// The wire format of protocol buffers: https://protobuf.dev/programming-guides/encoding.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace jaxexp::wire::protobuf {

struct Field {
  std::uint64_t number;
  enum Type : std::uint8_t { varint, eight_bytes, with_length, four_bytes = 5 } type;
  std::uint64_t value;     // of a varint
  std::string_view bytes;  // of the others
};

/// A number, which is taken off the front; nothing where there is none.
std::optional<std::uint64_t> varint(std::string_view& message);

/// Nothing where the bytes are no message.
std::optional<std::vector<Field>> fields(std::string_view message);

}  // namespace jaxexp::wire::protobuf

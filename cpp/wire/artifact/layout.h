// Where the parts of an artifact lie: the root offset, the head, the metadata, the modules, and the trailer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "trailer_generated.h"
#include "wire/base/digest.h"
#include "wire/base/unaligned.h"

namespace jaxexp::wire {

/// Stands behind the root offset of an artifact with a trailer, and at its end. Nothing that jax.export writes there
/// looks like it.
inline constexpr std::array<std::uint8_t, 8> mark = {'j', 'a', 'x', 'e', 'x', 'p', 0, 1};

/// The same of an image: an artifact whose modules are stored apart (cpp/wire/artifact/apart.h). Two bytes are those of
/// the other mark, so none becomes the other by damage.
inline constexpr std::array<std::uint8_t, 8> image_mark = {'j', 'x', 'i', 'm', 'a', 'g', 'e', 1};

/// What stands between the root offset and the tables of an artifact with a trailer: the mark, and the artifact's size.
inline constexpr std::size_t head_size = mark.size() + sizeof(std::uint32_t);

/// Fills the head of an artifact or image that has `end` bytes.
void write_head(std::uint8_t* artifact, std::size_t end, bool image = false);

/// An artifact in pieces: metadata, then for each module its length, its bytes, and zeros up to a multiple of four; the
/// primal's module comes first. The pieces are views of the Writer's memory and of the modules that it was given.
struct Layout {
  std::span<const std::uint8_t> metadata;
  std::vector<std::span<const std::uint8_t>> modules;
  std::size_t size;
};

constexpr std::size_t padding(std::size_t size) { return (4 - size % 4) % 4; }

/// What does not fit into an artifact.
struct TooLarge : std::exception {
  const char* what() const noexcept override { return "the artifact would be 2 GiB or more, beyond the format"; }
};

inline Digest stored(const schema::Digest& digest) { return load<Digest>(digest.bytes()->Data()); }

inline schema::Digest to_schema(const Digest& digest) {
  return schema::Digest(flatbuffers::span<const std::uint8_t, 16>(digest));
}

}  // namespace jaxexp::wire

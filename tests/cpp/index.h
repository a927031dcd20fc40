// An archive's index in one buffer: a mark, where its root begins, the position in the file of what follows, and the
// bytes of the index, of which the root is the last part.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/index.h"
#include "wire/archive/records.h"

namespace jaxexp::tests {

struct IndexBuffer {
  static constexpr std::string_view mark = "JXIX";

  std::span<const std::uint8_t> bytes, root_bytes;
  std::uint64_t position = 0;
  const wire::schema::Index* root = nullptr;  // by flatc's own verifier; null where it is none

  /// Nothing where the buffer has another form.
  static std::optional<IndexBuffer> find(std::span<const std::uint8_t> buffer);

  /// For ArchiveIndex.
  std::uint64_t end() const { return root ? root->end() : position; }
  std::uint64_t size() const { return bytes.size() - std::min<std::uint64_t>(bytes.size(), end() - position); }

  /// The bytes of a place in the file; nothing where they are not there.
  std::optional<std::span<const std::uint8_t>> at(std::uint64_t place, std::uint64_t size) const;

  /// The blocks that are there.
  std::vector<std::span<const std::uint8_t>> blocks() const;
};

/// What was written behind each other from a position on, of which the last one is the index.
std::vector<std::uint8_t> index_buffer(std::uint64_t position, const std::vector<wire::IndexBytes>& written);

/// Makes the digests of blocks, weights and pages right, as far as they can be found.
void seal_index(std::vector<std::uint8_t>& buffer);

}  // namespace jaxexp::tests

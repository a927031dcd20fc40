// Indexes of archives as one buffer each: the root at its beginning, marked by a file identifier, and blocks behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "archive_generated.h"
#include "wire/archive/records.h"

namespace jaxexp::tests {

inline constexpr const char* index_identifier = "JXIX";

/// The root where the bytes in front are one, by flatc's own verifier; else null.
const wire::schema::Index* index_root(std::span<const std::uint8_t> bytes);

/// Positions and sizes of the blocks that lie inside the bytes.
std::vector<std::pair<std::size_t, std::size_t>> blocks_of(std::span<const std::uint8_t> bytes);

/// Makes the digests of blocks right, as far as they can be found.
void seal_index(std::vector<std::uint8_t>& bytes);

/// Members in blocks of `in_block`, each of which is a flat buffer with a single one's records in it, and weights.
std::vector<std::uint8_t> index_of(const std::vector<std::pair<std::string, wire::Member>>& members,
                                   std::size_t in_block, std::uint64_t end, const wire::ArchiveWeights& weights = {});

/// The same as an index of changes that has everything itself: its blocks are in pages of `in_page`.
std::vector<std::uint8_t> paged_index_of(const std::vector<std::pair<std::string, wire::Member>>& members,
                                         std::size_t in_block, std::size_t in_page, std::uint64_t end);

}  // namespace jaxexp::tests

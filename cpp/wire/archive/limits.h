// Limits of an archive's index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxexp::wire {

/// What readers fetch and check to find one member, and an append writes anew. Fewer, and the root is larger, which
/// each append writes.
inline constexpr std::uint32_t members_in_block = 64;

/// The index of up to so many members is written anew by each append, and so is the ZIP file's directory. An append to
/// more writes what it changes.
inline constexpr std::uint32_t max_rewritten_members = 1000;

inline constexpr std::size_t member_alignment = 64;
inline constexpr std::size_t max_members = std::size_t{1} << 24;
inline constexpr std::size_t max_name_size = 1024;

/// The user's metadata, and the name of a function.
inline constexpr std::size_t max_index_text_size = std::size_t{1} << 16;

/// Each list of a summary, and the releases of JAX.
inline constexpr std::size_t max_index_list_size = std::size_t{1} << 12;

/// The members of a block may have texts in common. All texts of all of its members have at most so many bytes for each
/// byte of the block: 64 members with the same long text are within this.
inline constexpr std::size_t max_text_per_block_byte = 64;

}  // namespace jaxexp::wire

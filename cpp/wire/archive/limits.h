// Limits of an archive's index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxexp::wire {

/// What readers fetch and check to find one member.
inline constexpr std::uint32_t members_in_block = 64;

inline constexpr std::size_t member_alignment = 64;
inline constexpr std::size_t max_members = std::size_t{1} << 24;
inline constexpr std::size_t max_name_size = 1024;

/// The user's metadata, and each list of a summary.
inline constexpr std::size_t max_index_text_size = std::size_t{1} << 16;

}  // namespace jaxexp::wire

// New memory that is about to be written as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace jaxexp::wire {

/// The part of memory that begins and ends at multiples of `unit`; empty where there is none.
std::span<std::uint8_t> whole_units(std::span<std::uint8_t> memory, std::size_t unit);

/// Lets memory that is not there yet come in large pages, where the system has them: in small ones it takes longer to
/// come than to be written. What is there stays.
void in_large_pages(std::span<std::uint8_t> memory);

}  // namespace jaxexp::wire

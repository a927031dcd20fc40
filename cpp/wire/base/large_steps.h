// New memory that is about to be written as a whole.
#pragma once

#include <cstdint>
#include <span>

namespace jaxexp::wire {

/// Makes memory be there in a few large steps, where the system can: otherwise it comes a page at a time when it is
/// first written, which takes longer than copying or reading what it is for. What is in it stays.
void in_large_steps(std::span<std::uint8_t> memory);

}  // namespace jaxexp::wire

// Exceptions in new threads, when memory has run out.
#pragma once

namespace jaxexp::wire {

/// Whether this thread can throw exceptions from now on, however little memory is left; to be asked when it begins.
/// What a thread needs for its first exception is allocated then, and glibc ends the process if that fails.
bool can_throw() noexcept;

}  // namespace jaxexp::wire

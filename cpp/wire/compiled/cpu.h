// What the processor of this machine can do, which decides what code runs on it.
#pragma once

#include <string>

namespace jaxexp::wire {

/// The features that the processor and the system offer to this process, as words with hexadecimal registers. Equal
/// texts on two machines mean equal instruction sets.
std::string cpu_features();

}  // namespace jaxexp::wire

// Where cases are checked, in the words of the recordings.
#pragma once

#include <map>
#include <string>

#include "jaxexp/runtime.h"

namespace jaxexp::runtime {

using Environment = std::map<std::string, std::string>;

/// What is known of a plugin, and of this machine. There is nothing of the machine's name, its user or its folders.
Environment environment(const Runtime& runtime);

/// An environment in one line, with all in which it differs from another one.
std::string in_short(const Environment& environment, const Environment& other);

}  // namespace jaxexp::runtime

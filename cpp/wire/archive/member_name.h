// What the members of an archive may be called.
#pragma once

#include <string>
#include <string_view>

namespace jaxexp::wire {

/// The folder for what an archive keeps for itself.
inline constexpr std::string_view reserved_folder = ".jaxexp";

/// What is wrong with a name; empty for one that is a relative path on every system: UTF-8, parts between single
/// slashes, none of them "." or "..", no backslashes, no drive, no control characters, nothing that changes the
/// direction of text.
std::string wrong_with_name(std::string_view name);

}  // namespace jaxexp::wire

// Which releases of JAX write an artifact like this one.
#pragma once

#include <string>
#include <string_view>

#include "exported_generated.h"

namespace jaxexp::wire {

/// Told from the fields that are present, because several layouts share a version number. For example
/// "0.10.1 to 0.11.0". The artifact has to be verified.
std::string_view writer(const schema::Exported& e);

/// For errors about a number that stands for something unknown: the number, and what it may be.
std::string unknown(int number, const schema::Exported& e);

}  // namespace jaxexp::wire

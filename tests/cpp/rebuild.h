// An artifact written again from what a reader sees of it, field by field, with the codec's own writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exported_generated.h"
#include "wire/artifact/trailer.h"

namespace jaxexp::tests {

/// Modules longer than `longest_module` are cut. A trailer says what `notes` says.
std::vector<std::uint8_t> rebuild(const wire::schema::Exported& root, std::size_t longest_module = SIZE_MAX,
                                  const wire::Notes* notes = nullptr);

}  // namespace jaxexp::tests

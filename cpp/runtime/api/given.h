// What users name: files, and options of plugins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "jaxexp/runtime.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::runtime {

/// A whole number, true or false, or else the text itself.
Runtime::Options::mapped_type option_value(std::string_view text);

/// Throws std::system_error with the name of the file.
std::shared_ptr<const wire::FileBytes> opened(const std::filesystem::path& file,
                                              wire::FileBytes::Reading how = wire::FileBytes::Reading::at_once);

/// A function in an archive, whose memory is the caller's. Throws RunError where there is none of this name, and
/// DeserializationError.
Artifact member_of(std::span<const std::uint8_t> archive, const std::string& name);

}  // namespace jaxexp::runtime

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "jaxexp/runtime.h"
#include "wire/base/file_bytes.h"

namespace jaxexp::runtime {

/// A whole number, true or false, or else the text itself.
Runtime::Options::mapped_type option_value(std::string_view text);

/// Sizes of dimension variables, as in "batch=8,seq=128". Throws RunError.
std::map<std::string, std::int64_t> sizes_in(std::string_view text);

/// Throws std::system_error with the name of the file.
std::shared_ptr<const wire::FileBytes> opened(const std::filesystem::path& file,
                                              wire::FileBytes::Reading how = wire::FileBytes::Reading::at_once);

/// An artifact in the caller's memory; where a member is named, the one in that archive, as a copy if the archive is a
/// mapped file. Throws DeserializationError, and RunError where there is no such member, or none is named in an
/// archive.
Artifact artifact_in(std::span<const std::uint8_t> bytes, const std::string& member = {}, bool is_mapped = false);

}  // namespace jaxexp::runtime

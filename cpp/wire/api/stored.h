// Views of what a trailer says of tensors and cases, which was checked when the artifact was opened.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jaxexp/artifact.h"
#include "wire/artifact/trailer.h"
#include "wire/artifact/weights.h"

namespace jaxexp::wire {

std::vector<jaxexp::Weights::File> files_in(const Vectors::FilesRead& files);
/// `in_archive` has the bytes of each tensor; it is empty where they are in no archive.
std::vector<jaxexp::Weights::Tensor> tensors_in(const Vectors::TensorsRead& tensors,
                                                std::span<const std::span<const std::uint8_t>> in_archive);
/// Of a trailer that has cases.
jaxexp::Cases cases_in(const Trailer& trailer, std::span<const std::span<const std::uint8_t>> in_archive);

}  // namespace jaxexp::wire

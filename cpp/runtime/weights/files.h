// Files of tensors that were opened and checked: those that an artifact names, or others that the caller names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jaxexp/artifact.h"
#include "wire/tensors/header.h"

namespace jaxexp::runtime {

/// How files of tensors are opened: mapped, or read where their bytes are to be stable, or are checked, as CheckFile
/// does it in jaxexp/runtime.h.
struct Opening {
  bool stable = false;
  std::function<void(const std::filesystem::path& file, std::span<const std::uint8_t> bytes)> check = {};
};

struct FoundTensor {
  std::string file;   // for messages
  wire::Tensor type;  // without a dtype where the bytes have none
  std::span<const std::uint8_t> bytes;
  std::shared_ptr<const void> owner;
  /// The dtype, by JAX's name, of a tensor in a file that the caller names: empty where its metadata do not say it.
  std::optional<std::string> of = {};
};

/// The tensors that an artifact names, in their order, in files beside it. Throws WeightsError where a file is missing,
/// cannot be opened, is damaged, or another one than the artifact was saved with; and what a check throws.
std::vector<FoundTensor> find_beside(const std::filesystem::path& artifact, const Weights& weights,
                                     const Opening& opening);

/// The tensors that an artifact names, in the archive that it is in: their bytes have no types. `archive` keeps them;
/// where it is null, the caller does. Throws WeightsError where one is missing.
std::vector<FoundTensor> find_in_archive(const Weights& weights, const std::shared_ptr<const void>& archive);

/// The tensors of these names, in their order, in the file of tensors or the index that the caller names. Throws
/// WeightsError. What a file has under one of `other_names` has to be the same as what it has under the name.
std::vector<FoundTensor> find_named(const std::filesystem::path& file, const std::vector<std::string>& names,
                                    const std::vector<std::pair<std::string, std::size_t>>& other_names,
                                    const Opening& opening);

}  // namespace jaxexp::runtime

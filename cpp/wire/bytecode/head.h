// What a module says before its code: who wrote it, and which kinds of operations, attributes and types it has. The
// code is not read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/base/error.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::wire {

/// Views into the module.
struct Head {
  using Kinds = std::set<std::pair<std::string_view, std::uint64_t>>;

  std::string_view producer;
  std::vector<std::string_view> dialects;
  std::set<std::string> operations;  // by names such as "vhlo.add_v1"
  Kinds attributes, types;           // a dialect, and its number for a kind
};

/// Reads a newer version of the format as the newest that is known here. Throws Error where the module is damaged.
Head read_head(std::span<const std::uint8_t> module, const Path& where);

/// The names in a module that are absolute paths in UTF-8: those of source files, in its locations. Names of scopes are
/// no paths. Throws Error where it is damaged.
std::set<std::string_view> absolute_paths(std::span<const std::uint8_t> module, const Path& where);

/// A location that names a file of source code. Views into the module.
struct SourceLocation {
  std::string_view file;
  std::span<const std::uint8_t> bytes;  // of the attribute
};

struct Sources {
  std::vector<SourceLocation> locations;
  std::vector<std::pair<std::uint64_t, std::string_view>> texts;  // attributes that are texts, by their numbers
};

/// What a module says about its source code. Throws the same.
Sources read_sources(std::span<const std::uint8_t> module, const Path& where);

/// Who wrote a module, from its first bytes. Nothing where they are no MLIR bytecode.
std::optional<std::string_view> producer_of(std::span<const std::uint8_t> module);

/// The section that has all names of a module, those of its symbols included. The whole module where it is no MLIR
/// bytecode, or damaged: then names may be anywhere.
std::span<const std::uint8_t> bytes_of_names(std::span<const std::uint8_t> module);

/// Whether a file, or anything else, has this name here.
bool is_here(std::string_view name);

/// A module in which no location names a file that `is_there`. Nothing where it is this one. Throws Error where the
/// module is damaged.
std::optional<std::vector<std::uint8_t>> without_sources(
    std::span<const std::uint8_t> module, const Path& where,
    const std::function<bool(std::string_view)>& is_there = is_here);

}  // namespace jaxexp::wire

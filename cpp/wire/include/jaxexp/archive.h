// Archives of serialized functions, read from C++ without Python: the file that jaxexp.Archive writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "jaxexp/artifact.h"

namespace jaxexp {

/// An archive in memory of the caller's, best a mapped file, which has to stay where and what it is while this, an
/// artifact of it, or a view of either is in use. May be used by several threads at once.
class Archive {
 public:
  /// Finds the end of the last complete archive in the file, and reads the root of its index; the rest is checked when
  /// it is needed. Throws DeserializationError where these are damaged, or the file is no archive.
  explicit Archive(std::span<const std::uint8_t> file);

  /// How many members there are.
  std::size_t size() const;

  /// Their names, ascending. Throws DeserializationError where the index is damaged.
  std::vector<std::string_view> names() const;

  bool contains(std::string_view name) const;

  /// A member, verified and checked as Artifact's constructor does. Throws std::out_of_range where there is none of
  /// that name, with names that there are, and DeserializationError where it, or its part of the index, is damaged.
  Artifact artifact(std::string_view name) const;

  /// The same as a copy, which uses only the tensors of the archive afterwards.
  Artifact copied_artifact(std::string_view name) const;

  /// How many bytes behind the archive an interrupted append has left.
  std::size_t unfinished_bytes() const;

 private:
  Artifact artifact(std::string_view name, bool is_copied) const;

  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace jaxexp

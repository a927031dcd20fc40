// Many artifacts at once: files, buffers and parts of a buffer, to objects of Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "bindings/artifact/functions.h"
#include "bindings/base/nanobind.h"

namespace jaxexp::bindings {

/// What a read of many returns in Python: the objects in order, and the ascending indices of those that are exceptions.
/// Where it stops at the first exception, that one comes last.
///
/// `workers` threads, the caller's included, read files and verify everything; the others do not hold the GIL. `admit`
/// is None, or is called with each artifact before anything is made of it; what it raises takes the place of the
/// object.
struct ReadMany {
  Functions functions;
  std::size_t workers;
  bool stop;
  nb::object admit;

  /// Items are paths and buffers. Large files are read in parts if that is allowed. For a file of more than
  /// `most_file_bytes`, its size is returned, and counts as an exception.
  nb::tuple items(const nb::list& items, bool in_parts, std::optional<std::uint64_t> most_file_bytes) const;

  /// Every extent is a tuple of an offset into one buffer, a size, and the (offset, size) of modules where that part is
  /// an image.
  nb::tuple slices(nb::handle owner, const nb::list& extents) const;
};

}  // namespace jaxexp::bindings
